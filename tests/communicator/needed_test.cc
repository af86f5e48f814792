#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/communicator/core.h"
#include "gradientflow/communicator/neighbours.h"
#include "tests/communicator/ranks.h"

// Jobs whose ranks connect when they need each other.
namespace gradientflow::testing {
namespace {

std::vector<int> Linked(Communicator& comm) {
  std::vector<int> linked;
  const CommunicatorCore& core = comm.core();
  core.progress().Do([&] {
    for (int r = 0; r < comm.size(); ++r) {
      if (core.fabric().link(r) != nullptr) linked.push_back(r);
    }
  });
  return linked;
}

std::uint32_t Word(int from, int to, std::size_t i) {
  return static_cast<std::uint32_t>(from * 1000 + to) * 31 +
         static_cast<std::uint32_t>(i);
}

class Needed : public ::testing::TestWithParam<int> {
 protected:
  Needed() {
    job_.over = Over::kNeeded;
    job_.size = GetParam();
  }
  CommJob job_;
};

TEST_P(Needed, OnlyNeighboursAreLinkedAtFirst) {
  RunRanks(job_, [](Communicator& comm) {
    const CallGroup& group = comm.core().group();
    EXPECT_EQ(Linked(comm), NeighboursOf(group, comm.rank(), true));
  });
}

// Every rank sends to all others at once, in an order of its own.
TEST_P(Needed, MessagesFromAllToAll) {
  RunRanks(job_, [](Communicator& comm) {
    const int size = comm.size();
    const int rank = comm.rank();
    std::vector<int> order;
    for (int r = 0; r < size; ++r) {
      if (r != rank) order.push_back(r);
    }
    std::mt19937 random(static_cast<std::uint32_t>(rank));
    std::shuffle(order.begin(), order.end(), random);
    const auto ranks = static_cast<std::size_t>(size);
    std::vector<std::vector<std::uint32_t>> out(ranks), in(ranks);
    std::vector<std::uint64_t> tickets;
    const auto words = [](int from, int to) {
      return static_cast<std::size_t>((from * 7 + to) % 5) * 20011;
    };
    for (const int peer : order) {
      const auto at = static_cast<std::size_t>(peer);
      for (std::size_t i = 0; i < words(rank, peer); ++i) {
        out[at].push_back(Word(rank, peer, i));
      }
      in[at].resize(words(peer, rank));
      const Communicator::Message message{0, peer, 5};
      const auto sent =
          comm.StartSend(message, out[at].data(), out[at].size() * 4);
      const auto received =
          comm.StartRecv(message, in[at].data(), in[at].size() * 4);
      ASSERT_TRUE(sent.ok() && received.ok());
      tickets.push_back(sent.value());
      tickets.push_back(received.value());
    }
    for (const std::uint64_t ticket : tickets) {
      const Status status = comm.Wait(ticket);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    for (const int peer : order) {
      const auto at = static_cast<std::size_t>(peer);
      for (std::size_t i = 0; i < in[at].size(); ++i) {
        ASSERT_EQ(in[at][i], Word(peer, rank, i));
      }
    }
    EXPECT_EQ(Linked(comm), NeighboursOf(comm.core().group(), rank, false));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Needed, ::testing::Values(2, 7, 8, 13));

TEST(NeededLinks, AreMadeWithARankThatIsInNoCall) {
  CommJob job;
  job.over = Over::kNeeded;
  job.size = 8;
  std::atomic<bool> sent{false};
  RunRanks(job, [&](Communicator& comm) {
    std::uint32_t word = 17;
    if (comm.rank() == 0) {
      EXPECT_TRUE(comm.Send(3, 1, &word, sizeof(word)).ok());
      sent.store(true);
      sent.notify_all();
      return;
    }
    sent.wait(false);
    if (comm.rank() != 3) return;
    word = 0;
    EXPECT_TRUE(comm.Recv(0, 1, &word, sizeof(word)).ok());
    EXPECT_EQ(word, 17U);
  });
}

TEST(NeededOptions, AutoLinksAllUpTo64Ranks) {
  CommJob job;
  job.over = Over::kTcp;
  job.size = 8;
  RunRanks(job, [](Communicator& comm) { EXPECT_EQ(Linked(comm).size(), 7U); });
}

TEST(NeededOptions, AllRanksMustAgree) {
  CommJob job;
  job.over = Over::kNeeded;
  job.size = 3;
  job.differ = [](int rank, Options* options) {
    if (rank == 2) options->connect = ConnectMode::kAll;
  };
  OpenRanks(job, [](const Options&, OpenedComm opened) {
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.status().message().find("connect=all"), std::string::npos)
        << opened.status().ToString();
  });
}

}  // namespace
}  // namespace gradientflow::testing
