#include "tests/rdma/verbs_rules.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/rdma/verbs_end.h"
#include "tests/rdma/verbs_rules_ends.h"

// What arrives, in what order, and what completes.
namespace gradientflow {
namespace {

// Whether `bytes` of b from `to` on are those of a from `from` on.
::testing::AssertionResult Same(VerbsEnd* a, std::ptrdiff_t from, VerbsEnd* b,
                                std::ptrdiff_t to, std::ptrdiff_t bytes) {
  const auto begin = a->memory().begin() + from;
  const auto end = begin + bytes;
  const auto differs = std::mismatch(begin, end, b->memory().begin() + to);
  if (differs.first == end) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "byte " << differs.first - begin << " of " << bytes << " differs";
}

TEST_P(VerbsRules, AWriteArrivesAndNobodyIsTold) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  const std::vector<char> before = b.memory();
  for (const std::uint32_t bytes : {1U, 7U, 1023U, 1024U, 1025U, 30001U}) {
    ASSERT_EQ(a.Post(a.Write(b, 11, 13, bytes)), 0);
    const ibv_wc sent = a.Await(1).at(0);
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(Same(&a, 11, &b, 13, bytes));
    EXPECT_TRUE(
        std::equal(before.begin(), before.begin() + 13, b.memory().begin()));
    const std::ptrdiff_t rest = std::ptrdiff_t{13} + bytes;
    EXPECT_TRUE(std::equal(before.begin() + rest, before.end(),
                           b.memory().begin() + rest));
  }
  EXPECT_TRUE(b.Poll().empty());
}

TEST_P(VerbsRules, ANoticeTakesAReceiveAndBringsAValue) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  for (std::uint64_t id = 0; id < 3; ++id) ASSERT_EQ(b.PostReceive(id), 0);
  const std::vector<std::uint32_t> sizes = {4097, 0, 1};
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(a.Post(a.Notice(b, 5, 9, sizes[i], 0xFACE0000 + i)), 0);
    EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
  }
  const std::vector<ibv_wc> received = b.Await(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(received[i].status, IBV_WC_SUCCESS);
    EXPECT_EQ(received[i].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received[i].wr_id, i);
    EXPECT_EQ(received[i].byte_len, sizes[i]);
    EXPECT_EQ(received[i].qp_num, b.pair()->qp_num);
    EXPECT_NE(received[i].wc_flags & IBV_WC_WITH_IMM, 0U);
    EXPECT_EQ(ntohl(received[i].imm_data), 0xFACE0000 + i);
  }
  EXPECT_TRUE(Same(&a, 5, &b, 9, 4097));
}

TEST_P(VerbsRules, ANoticeTellsOfAllWritesBeforeIt) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(b.PostReceive(1), 0);
  for (std::size_t i = 0; i < 7; ++i) {
    ibv_send_wr* const wr = a.Write(b, i * 8000, i * 8000 + 3, 7001);
    wr->send_flags = 0;
    ASSERT_EQ(a.Post(wr), 0);
  }
  ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 0, 1)), 0);
  EXPECT_EQ(b.Await(1).at(0).status, IBV_WC_SUCCESS);
  for (std::ptrdiff_t i = 0; i < 7; ++i) {
    EXPECT_TRUE(Same(&a, i * 8000, &b, i * 8000 + 3, 7001));
  }
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(a.Poll().empty());  // The others were not signalled.
}

TEST_P(VerbsRules, NothingNeedsNoKey) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(b.PostReceive(1), 0);
  ibv_send_wr* const wr = a.Notice(b, 0, 0, 0, 77);
  wr->wr.rdma.rkey = 0;
  wr->wr.rdma.remote_addr = 0;
  ASSERT_EQ(a.Post(wr), 0);
  EXPECT_EQ(ntohl(b.Await(1).at(0).imm_data), 77U);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
}

TEST_P(VerbsRules, InlineBytesAreReadWhenTheyArePosted) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(b.PostReceive(1), 0);
  std::vector<char> own = {1, 2, 3, 4, 5};  // Not registered.
  const std::vector<char> before = own;
  ibv_send_wr* const wr = a.Notice(b, 0, 50, 5, 1);
  wr->sg_list->addr = reinterpret_cast<std::uint64_t>(own.data());
  wr->sg_list->lkey = 0;
  wr->send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(a.Post(wr), 0);
  std::fill(own.begin(), own.end(), 9);
  EXPECT_EQ(b.Await(1).at(0).byte_len, 5U);
  EXPECT_TRUE(
      std::equal(before.begin(), before.end(), b.memory().begin() + 50));
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
}

TEST_P(VerbsRules, AMessageFillsTheMemoryOfAReceive) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(b.PostReceive(3, 100, 5000), 0);
  ASSERT_EQ(a.Post(a.Message(40, 3333)), 0);
  const ibv_wc received = b.Await(1).at(0);
  EXPECT_EQ(received.opcode, IBV_WC_RECV);
  EXPECT_EQ(received.byte_len, 3333U);
  EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, 0U);
  EXPECT_TRUE(Same(&a, 40, &b, 100, 3333));
  EXPECT_EQ(a.Await(1).at(0).opcode, IBV_WC_SEND);
}

TEST_P(VerbsRules, SeveralPiecesAreGathered) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ibv_sge pieces[2] = {{a.At(1000), 2345, a.region()->lkey},
                       {a.At(9000), 3210, a.region()->lkey}};
  ibv_send_wr* const wr = a.Write(b, 0, 20, 0);
  wr->sg_list = pieces;
  wr->num_sge = 2;
  ASSERT_EQ(a.Post(wr), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(Same(&a, 1000, &b, 20, 2345));
  EXPECT_TRUE(Same(&a, 9000, &b, 20 + 2345, 3210));
}

TEST_P(VerbsRules, AllArriveInTheOrderInWhichTheyWerePosted) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  std::vector<std::uint32_t> values;
  for (std::uint32_t i = 0; i < 60; ++i) {
    ASSERT_EQ(b.PostReceive(i), 0);
    ibv_send_wr* const wr = a.Notice(b, 0, 0, i * 97 % 3000, i);
    wr->wr_id = i;
    ASSERT_EQ(a.Post(wr), 0);
    if (i % 10 != 9) continue;
    for (const ibv_wc& wc : b.Await(10)) values.push_back(ntohl(wc.imm_data));
    const std::vector<ibv_wc> sent = a.Await(10);
    for (std::uint32_t k = 0; k < 10; ++k) EXPECT_EQ(sent[k].wr_id, i - 9 + k);
  }
  for (std::uint32_t i = 0; i < 60; ++i) EXPECT_EQ(values.at(i), i);
}

TEST_P(VerbsRules, AnEventComesOncePerArming) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  const int fd = b.channel()->fd;
  const VerbsApi& verbs = b.verbs();
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(b.PostReceive(id), 0);
  ibv_cq* queue = nullptr;
  void* owner = nullptr;
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(IsReadable(fd));
    ASSERT_EQ(verbs.req_notify_cq(b.queue(), 0), 0);
    ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 1, 1)), 0);
    ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 1, 2)), 0);
    EXPECT_EQ(b.Await(2).size(), 2U);
    EXPECT_EQ(a.Await(2).size(), 2U);
    ASSERT_TRUE(IsReadable(fd));
    ASSERT_EQ(verbs.get_cq_event(b.channel(), &queue, &owner), 0);
    EXPECT_EQ(queue, b.queue());
    EXPECT_EQ(owner, &b);
  }
  EXPECT_FALSE(IsReadable(fd));
  EXPECT_TRUE(MakeNonBlocking(fd));
  EXPECT_EQ(verbs.get_cq_event(b.channel(), &queue, &owner), -1);
  EXPECT_EQ(errno, EAGAIN);
  verbs.ack_cq_events(b.queue(), 2);
}

TEST_P(VerbsRules, OnlyWhatIsSolicitedWakesWhoAskedForThat) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  for (std::uint64_t id = 0; id < 2; ++id) ASSERT_EQ(b.PostReceive(id), 0);
  ASSERT_EQ(b.verbs().req_notify_cq(b.queue(), 1), 0);
  ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 1, 1)), 0);
  EXPECT_EQ(b.Await(1).size(), 1U);
  EXPECT_FALSE(IsReadable(b.channel()->fd));
  ibv_send_wr* const wr = a.Notice(b, 0, 0, 1, 2);
  wr->send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(a.Post(wr), 0);
  EXPECT_EQ(b.Await(1).size(), 1U);
  EXPECT_TRUE(IsReadable(b.channel()->fd));
  ibv_cq* queue = nullptr;
  void* owner = nullptr;
  ASSERT_EQ(b.verbs().get_cq_event(b.channel(), &queue, &owner), 0);
  b.verbs().ack_cq_events(queue, 1);
  EXPECT_EQ(a.Await(2).size(), 2U);
}

}  // namespace
}  // namespace gradientflow
