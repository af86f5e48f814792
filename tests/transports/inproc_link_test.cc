#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "transports/inproc/create.h"
#include "transports/link.h"
#include "transports/shm/shm_options.h"

namespace gradientflow {
namespace {

using testing::Intact;
using testing::LinkOwner;
using testing::Received;

constexpr std::size_t kArena = std::size_t{16} << 20;
constexpr std::size_t kFifo = 8192;

// More than two ranks; link_conformance.cc tests the promises of each link.
// This one thread drives all ranks, so that a test chooses the interleaving.
class InprocLink : public ::testing::Test {
 protected:
  void Make(int size, std::size_t fifo_bytes = kFifo) {
    auto group = InprocGroup::Create(size, {kArena, fifo_bytes});
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    group_ = std::move(group).value();
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<LinkOwner>());
      auto links =
          group_->Connect(rank, ranks_.back()->poller(), ranks_.back().get());
      ASSERT_TRUE(links.ok()) << links.status().ToString();
      ranks_.back()->Take(std::move(links).value());
    }
  }
  LinkOwner& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  // Drives until nothing moves.
  void Settle() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (auto& rank : ranks_) moved |= rank->PollOnce();
    }
  }

  std::shared_ptr<InprocGroup> group_;
  std::vector<std::unique_ptr<LinkOwner>> ranks_;
};

TEST_F(InprocLink, SurvivesRandomInterleavings) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    ranks_.clear();
    const int size = 2 + static_cast<int>(seed % 4);
    Make(size, seed % 2 ? 4096 : 16384);
    std::mt19937 random(seed);
    // sent[a][b] is the number of messages; their tags count from there.
    std::vector<std::vector<std::uint64_t>> sent(
        size, std::vector<std::uint64_t>(size));
    for (int i = 0; i < 3000; ++i) {
      const int a = static_cast<int>(random() % size);
      const int b = static_cast<int>(random() % size);
      if (random() % 3 == 0 && a != b) {
        const std::uint64_t tag =
            (static_cast<std::uint64_t>(a) << 32) | sent[a][b]++;
        at(a).Send(b, tag, random() % (random() % 8 ? 300 : 40000));
      } else {
        at(a).PollOnce();
      }
    }
    Settle();
    std::vector<std::vector<std::uint64_t>> got(
        size, std::vector<std::uint64_t>(size));
    for (int b = 0; b < size; ++b) {
      for (const Received& message : at(b).received) {
        ASSERT_TRUE(Intact(message)) << "seed " << seed;
        const std::uint64_t expected =
            (static_cast<std::uint64_t>(message.peer) << 32) |
            got[message.peer][b]++;
        ASSERT_EQ(message.header.tag, expected) << "seed " << seed;
      }
    }
    EXPECT_EQ(got, sent) << "seed " << seed;
  }
}

TEST_F(InprocLink, DoesABoundedAmountOfWorkPerPoll) {
  Make(2, std::size_t{4} << 20);
  at(0).Send(1, 1, std::size_t{3} << 20);
  at(0).to(1).Poll();
  EXPECT_TRUE(at(0).sent.empty());
  for (int i = 0; i < 20000; ++i) at(0).Send(1, 2, 0);
  for (int i = 0; i < 64; ++i) at(0).to(1).Poll();
  EXPECT_EQ(at(0).sent.size(), 20001U);
  std::size_t before = 0;
  std::size_t most = 0;
  while (at(1).to(0).Poll()) {
    most = std::max(most, at(1).messages - before);
    before = at(1).messages;
  }
  EXPECT_EQ(at(1).messages, 20001U);
  EXPECT_LE(most, 4096U);
}

TEST_F(InprocLink, APeersDeathLeavesTheOtherLinksAlone) {
  Make(3);
  at(1).Drop(0);
  at(0).Send(2, 11, 10);
  Settle();
  ASSERT_EQ(at(0).down.size(), 1U);
  EXPECT_EQ(at(0).down[0].first, 1);
  EXPECT_EQ(at(2).received.size(), 1U);
}

TEST_F(InprocLink, APausedPeerStillReceivesOnItsOtherLinks) {
  Make(3);
  at(2).pause = true;
  at(0).Send(2, 1, 10);
  Settle();
  at(2).pause = false;
  at(1).Send(2, 2, 10);
  Settle();
  ASSERT_EQ(at(2).received.size(), 1U);
  EXPECT_EQ(at(2).received[0].peer, 1);
}

TEST_F(InprocLink, RanksConnectOnceAndMayBeAlone) {
  Make(1);
  EXPECT_EQ(group_->arena(0).members(), std::vector<int>{0});
  EXPECT_TRUE(group_->arena(0).Allocate(100).ok());
  LinkOwner other;
  EXPECT_EQ(group_->Connect(0, other.poller(), &other).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(group_->Connect(1, other.poller(), &other).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(InprocGroup::Create(0, {kArena, kFifo}).ok());
  const auto small = InprocGroup::Create(8, {std::size_t{1} << 20, 1 << 20});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace gradientflow
