#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/rdma/verbs_end.h"
#include "tests/rdma/verbs_rules.h"
#include "tests/rdma/verbs_rules_ends.h"

// What is refused, and how both ends hear of it.
namespace gradientflow {
namespace {

// The writer gets this status and nothing arrives. Then both pairs are broken:
// a's second write and b's receives are flushed.
void ExpectRefused(VerbsEnd* a, VerbsEnd* b, ibv_send_wr* wr,
                   ibv_wc_status status) {
  const std::vector<char> before = b->memory();
  ASSERT_EQ(b->PostReceive(1), 0);
  ASSERT_EQ(b->PostReceive(2), 0);
  ibv_send_wr second = *wr;
  wr->wr_id = 10;
  second.wr_id = 11;
  second.send_flags = 0;  // A flush is told though it was not signalled.
  wr->next = &second;
  ASSERT_EQ(a->Post(wr), 0);
  const std::vector<ibv_wc> sent = a->Await(2);
  EXPECT_EQ(sent[0].wr_id, 10U);
  EXPECT_EQ(sent[0].status, status);
  EXPECT_EQ(sent[1].wr_id, 11U);
  EXPECT_EQ(sent[1].status, IBV_WC_WR_FLUSH_ERR);
  const std::vector<ibv_wc> received = b->Await(2);
  for (std::uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(received[i].wr_id, 1 + i);
    EXPECT_EQ(received[i].status, IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_EQ(b->memory(), before);
  EXPECT_FALSE(IsReadable(a->context()->async_fd));
  EXPECT_FALSE(IsReadable(b->context()->async_fd));
}

TEST_P(VerbsRules, AWriteByAWrongKey) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ibv_send_wr* const wr = a.Write(b, 0, 0, 3000);
  wr->wr.rdma.rkey ^= 0x10500;
  ExpectRefused(&a, &b, wr, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(VerbsRules, AWriteByTheKeyOfItsOwnHost) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  // Regions of equal addresses would make a write by a's own key succeed.
  ibv_send_wr* const wr = a.Write(a, 0, 0, 3000);
  ExpectRefused(&a, &b, wr, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(VerbsRules, AWriteBeyondTheEnd) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  const std::size_t end = b.memory().size();
  ExpectRefused(&a, &b, a.Write(b, 0, end - 2999, 3000), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(VerbsRules, AWriteBeforeTheBeginning) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ibv_send_wr* const wr = a.Write(b, 0, 0, 100);
  --wr->wr.rdma.remote_addr;
  ExpectRefused(&a, &b, wr, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(VerbsRules, AWriteUpToTheEndIsAllowed) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  const std::size_t end = b.memory().size();
  ASSERT_EQ(a.Post(a.Write(b, 0, end - 3000, 3000)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_SUCCESS);
}

TEST_P(VerbsRules, AWriteToARegionWithoutTheRight) {
  VerbsEndOptions local;
  local.access = IBV_ACCESS_LOCAL_WRITE;
  GF_TWO_ENDS_OR_SKIP({}, local);
  Connect(&a, &b);
  ExpectRefused(&a, &b, a.Write(b, 0, 0, 100), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(VerbsRules, AWriteToAPairWithoutTheRight) {
  VerbsEndOptions local;
  local.pair_access = IBV_ACCESS_LOCAL_WRITE;
  GF_TWO_ENDS_OR_SKIP({}, local);
  Connect(&a, &b);
  ExpectRefused(&a, &b, a.Write(b, 0, 0, 100), IBV_WC_REM_INV_REQ_ERR);
}

TEST_P(VerbsRules, AWriteToADomainThatIsNotThePairs) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ibv_pd* const other = b.verbs().alloc_pd(b.context());
  ibv_mr* const region =
      b.verbs().reg_mr(other, b.memory().data(), b.memory().size(), b.At(0),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(region, nullptr);
  ibv_send_wr* const wr = a.Write(b, 0, 0, 100);
  wr->wr.rdma.rkey = region->rkey;
  ExpectRefused(&a, &b, wr, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(b.verbs().dereg_mr(region), 0);
  EXPECT_EQ(b.verbs().dealloc_pd(other), 0);
}

TEST_P(VerbsRules, AWriteToARegionThatIsNoMore) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  const auto registered = [&b] {
    return b.verbs().reg_mr(b.domain(), b.memory().data(), b.memory().size(),
                            b.At(0),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  };
  ibv_mr* const old = registered();
  ASSERT_NE(old, nullptr);
  const std::uint32_t key = old->rkey;
  ASSERT_EQ(b.verbs().dereg_mr(old), 0);
  ibv_mr* const again = registered();
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again->rkey, key);
  ibv_send_wr* const wr = a.Write(b, 0, 0, 100);
  wr->wr.rdma.rkey = key;
  ExpectRefused(&a, &b, wr, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(b.verbs().dereg_mr(again), 0);
}

TEST_P(VerbsRules, AReadOfWhatIsNotRegisteredHere) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ibv_send_wr* const wr = a.Write(b, 0, 0, 100);
  wr->sg_list->lkey ^= 0x10500;
  wr->wr_id = 4;
  ASSERT_EQ(a.Post(wr), 0);
  const ibv_wc failed = a.Await(1).at(0);
  EXPECT_EQ(failed.wr_id, 4U);
  // The specification has the former, Soft-RoCE the latter.
  EXPECT_TRUE(failed.status == IBV_WC_LOC_PROT_ERR ||
              failed.status == IBV_WC_LOC_QP_OP_ERR)
      << failed.status;
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 100)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(VerbsRules, NoReceiveIsAnErrorAfterSomeTries) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 10, 1)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_P(VerbsRules, AMessageThatIsTooLongForItsReceive) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  ASSERT_EQ(b.PostReceive(1, 0, 99), 0);
  ASSERT_EQ(a.Post(a.Message(0, 100)), 0);
  // The first of each is the specification's, the second Soft-RoCE's.
  const ibv_wc_status sent = a.Await(1).at(0).status;
  EXPECT_TRUE(sent == IBV_WC_REM_INV_REQ_ERR || sent == IBV_WC_REM_OP_ERR)
      << sent;
  const ibv_wc_status received = b.Await(1).at(0).status;
  EXPECT_TRUE(received == IBV_WC_LOC_LEN_ERR ||
              received == IBV_WC_LOC_QP_OP_ERR)
      << received;
}

// Connects the two, but a's numbers of b are made wrong.
void ExpectUnheard(const VerbsWorld& world,
                   const std::function<void(VerbsAddress*)>& spoil) {
  VerbsEnd a(world.verbs[0], world.devices[0], world.move);
  VerbsEnd b(world.verbs[1], world.devices[1], world.move);
  VerbsAddress of_a = a.address();
  VerbsAddress of_b = b.address();
  spoil(&of_b);
  a.Connect(of_b);
  b.Connect(of_a);
  const std::vector<char> before = b.memory();
  a.memory()[0] = 1;
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 100)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(b.memory(), before);
}

TEST_P(VerbsRules, APairOfAnotherNumberIsNotHeard) {
  const VerbsWorld world = GetParam().make();
  if (!world.missing.empty()) GTEST_SKIP() << world.missing;
  ExpectUnheard(world, [](VerbsAddress* of_b) { of_b->number += 100; });
}

TEST_P(VerbsRules, APeerThatIsGoneIsNotHeard) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  b.DestroyPair();
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 100)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(VerbsRules, AMessageFromAnUnexpectedNumberOnIsNotHeard) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  a.Init();
  ASSERT_EQ(a.ToReceive(b.address()), 0);
  ASSERT_EQ(a.ToSend((a.address().psn + 5) % (1 << 24)), 0);
  b.Connect(a.address());
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 100)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(VerbsRules, StatesFollowEachOther) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  EXPECT_EQ(a.Post(a.Write(b, 0, 0, 1)), EINVAL);
  EXPECT_NE(a.ToReceive(b.address()), 0);  // From RESET.
  a.Init();
  EXPECT_EQ(a.PostReceive(1), 0);
  EXPECT_NE(a.ToSend(0), 0);  // From INIT.
  ibv_qp_attr set = {};
  set.qp_state = IBV_QPS_RTR;
  EXPECT_NE(a.verbs().modify_qp(a.pair(), &set, IBV_QP_STATE), 0);
  EXPECT_EQ(a.ToReceive(b.address()), 0);
  EXPECT_EQ(a.Post(a.Write(b, 0, 0, 1)), EINVAL);
  EXPECT_EQ(a.ToSend(a.address().psn), 0);
}

TEST_P(VerbsRules, AnErrorFlushesWhatIsPostedThenAndLater) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  Connect(&a, &b);
  for (std::uint64_t id = 0; id < 3; ++id) ASSERT_EQ(a.PostReceive(id), 0);
  ibv_qp_attr set = {};
  set.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(a.verbs().modify_qp(a.pair(), &set, IBV_QP_STATE), 0);
  std::uint64_t next = 0;
  for (const ibv_wc& wc : a.Await(3)) {
    EXPECT_EQ(wc.wr_id, next++);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  ASSERT_EQ(a.Post(a.Write(b, 0, 0, 1)), 0);
  EXPECT_EQ(a.Await(1).at(0).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(VerbsRules, RegistrationsThatAreRefused) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  const VerbsApi& verbs = a.verbs();
  const auto error = [&](void* data, std::size_t bytes, unsigned access) {
    errno = 0;
    ibv_mr* const region = verbs.reg_mr(
        a.domain(), data, bytes, reinterpret_cast<std::uint64_t>(data), access);
    if (region == nullptr) return errno;
    verbs.dereg_mr(region);
    return 0;
  };
  void* const data = a.memory().data();
  EXPECT_EQ(error(data, 100, IBV_ACCESS_LOCAL_WRITE), 0);
  EXPECT_EQ(error(data, 100, 0), 0);
  EXPECT_EQ(error(data, 100, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(error(nullptr, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT_EQ(
      error(data, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING),
      0);
}

TEST_P(VerbsRules, WhatIsInUseStays) {
  GF_TWO_ENDS_OR_SKIP({}, {});
  EXPECT_EQ(a.verbs().dealloc_pd(a.domain()), EBUSY);
  EXPECT_EQ(a.verbs().destroy_cq(a.queue()), EBUSY);
  EXPECT_EQ(a.verbs().destroy_comp_channel(a.channel()), EBUSY);
}

}  // namespace
}  // namespace gradientflow
