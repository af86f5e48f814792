#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transports/spsc_test_util.h"
#include "transports/inproc/create.h"
#include "transports/link.h"
#include "transports/shm/shm_options.h"

namespace gradientflow {
namespace {

using testing::CountEntries;
using testing::Endpoint;
using testing::Intact;
using testing::Received;

constexpr std::size_t kArena = std::size_t{16} << 20;
constexpr std::size_t kFifo = 8192;

// All ranks, driven from this one thread: every interleaving is a test's own.
class InprocLink : public ::testing::Test {
 protected:
  void Make(int size, std::size_t fifo_bytes = kFifo) {
    auto group = InprocGroup::Create(size, {kArena, fifo_bytes});
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    group_ = std::move(group).value();
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Endpoint>());
      auto links =
          group_->Connect(rank, ranks_.back()->poller(), ranks_.back().get());
      ASSERT_TRUE(links.ok()) << links.status().ToString();
      ranks_.back()->Take(std::move(links).value());
    }
  }
  Endpoint& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  // Until nothing moves any more.
  void Settle() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (auto& rank : ranks_) moved |= rank->PollOnce();
    }
  }

  std::shared_ptr<InprocGroup> group_;
  std::vector<std::unique_ptr<Endpoint>> ranks_;
};

TEST_F(InprocLink, CarriesEverySizeIntactAndInOrder) {
  Make(2);
  const std::vector<std::size_t> sizes = {
      0,         1,     31,        32,         33,      4096,
      kFifo - 1, kFifo, kFifo + 1, kFifo - 32, 5000000, 0};
  for (std::size_t i = 0; i < sizes.size(); ++i) at(0).Send(1, i, sizes[i]);
  EXPECT_EQ(at(0).to(1).queued_messages(), sizes.size());
  EXPECT_TRUE(at(0).sent.empty()) << "a completion ran inside Send()";
  Settle();
  ASSERT_EQ(at(1).received.size(), sizes.size());
  ASSERT_EQ(at(0).sent.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(at(1).received[i].header.tag, i);
    EXPECT_EQ(at(1).received[i].header.payload_bytes, sizes[i]);
    EXPECT_EQ(at(1).received[i].peer, 0);
    EXPECT_TRUE(Intact(at(1).received[i])) << sizes[i];
    EXPECT_EQ(at(0).sent[i].first, i);
    EXPECT_TRUE(at(0).sent[i].second.ok());
  }
  EXPECT_EQ(at(0).to(1).queued_messages(), 0U);
}

TEST_F(InprocLink, TellsWhatItIs) {
  Make(2);
  EXPECT_STREQ(at(0).to(1).kind(), "inproc");
  EXPECT_EQ(std::string(at(0).to(1).address()).rfind("pid ", 0), 0U);
  EXPECT_EQ(at(0).to(1).lanes(), 1);
}

TEST_F(InprocLink, CarriesManySmallMessagesBothWays) {
  Make(2);
  constexpr std::size_t kCount = 5000;
  for (std::size_t i = 0; i < kCount; ++i) {
    at(0).Send(1, i, i % 67);
    at(1).Send(0, i, i % 71);
  }
  Settle();
  ASSERT_EQ(at(0).received.size(), kCount);
  ASSERT_EQ(at(1).received.size(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(at(0).received[i].header.tag, i);
    ASSERT_TRUE(Intact(at(0).received[i]) && Intact(at(1).received[i]));
  }
}

TEST_F(InprocLink, SurvivesRandomInterleavings) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    ranks_.clear();
    const int size = 2 + static_cast<int>(seed % 4);
    Make(size, seed % 2 ? 4096 : 16384);
    std::mt19937 random(seed);
    // sent[a][b]: how many; tags count from there.
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

TEST_F(InprocLink, AsksAgainForALandingOnlyAfterResume) {
  Make(2);
  at(1).pause = true;
  at(0).Send(1, 1, 100);
  at(0).Send(1, 2, 100000);
  Settle();
  EXPECT_EQ(at(1).headers, 1U);
  EXPECT_TRUE(at(1).received.empty());
  EXPECT_TRUE(at(1).to(0).PrepareToSleep()) << "a paused lane is idle";
  at(1).to(0).WakeUp();
  at(1).pause = false;
  at(1).to(0).Resume(0);
  EXPECT_FALSE(at(1).to(0).PrepareToSleep()) << "there is something to do";
  Settle();
  ASSERT_EQ(at(1).received.size(), 2U);
  EXPECT_TRUE(Intact(at(1).received[1]));
  EXPECT_EQ(at(1).headers, 3U);
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

TEST_F(InprocLink, DeliversWhatWasSentBeforeThePeerLeft) {
  Make(2);
  at(0).Send(1, 1, 100);
  at(0).Send(1, 2, 4000);
  at(0).PollOnce();
  EXPECT_EQ(at(0).to(1).queued_messages(), 0U);
  at(0).Drop(1);
  Settle();
  ASSERT_EQ(at(1).received.size(), 2U);
  EXPECT_TRUE(Intact(at(1).received[1]));
  ASSERT_EQ(at(1).down.size(), 1U);
  EXPECT_EQ(at(1).down[0].second.code(), StatusCode::kUnavailable);
}

TEST_F(InprocLink, PeersDeathEndsEverySendOnceAndNamesTheRank) {
  Make(3);
  at(0).Send(1, 7, 10);
  at(0).Send(1, 8, 1000000);
  at(0).Send(1, 9, 10);
  at(0).PollOnce();
  at(1).Drop(0);
  Settle();
  ASSERT_EQ(at(0).down.size(), 1U);
  EXPECT_EQ(at(0).down[0].first, 1);
  const Status& why = at(0).down[0].second;
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("rank 1 (pid "), std::string::npos)
      << why.message();
  ASSERT_EQ(at(0).sent.size(), 3U);
  EXPECT_TRUE(at(0).sent[0].second.ok());
  EXPECT_EQ(at(0).sent[1].second.code(), StatusCode::kUnavailable);
  EXPECT_EQ(at(0).sent[2].second.code(), StatusCode::kUnavailable);
  at(0).Send(1, 10, 10);
  EXPECT_EQ(at(0).sent.size(), 3U);
  Settle();
  ASSERT_EQ(at(0).sent.size(), 4U) << "a send after the end ends too";
  EXPECT_EQ(at(0).down.size(), 1U);
  at(0).Send(2, 11, 10);
  Settle();
  EXPECT_EQ(at(2).received.size(), 1U) << "other links go on";
}

TEST_F(InprocLink, DeathInMidMessageIsToldAsSuch) {
  Make(2);
  at(0).Send(1, 8, 1000000);
  at(0).PollOnce();
  at(1).PollOnce();
  at(0).Drop(1);
  Settle();
  ASSERT_EQ(at(1).down.size(), 1U);
  EXPECT_NE(at(1).down[0].second.message().find("mid-message"),
            std::string::npos);
  EXPECT_TRUE(at(1).received.empty());
}

TEST_F(InprocLink, ARefusedHeaderEndsTheLinkOnBothSides) {
  Make(2);
  at(1).refuse = Status(StatusCode::kInternal, "not this one");
  at(0).Send(1, 1, 100);
  Settle();
  ASSERT_EQ(at(1).down.size(), 1U);
  EXPECT_EQ(at(1).down[0].second.message(), "not this one");
  ASSERT_EQ(at(0).down.size(), 1U);
  EXPECT_EQ(at(0).down[0].second.code(), StatusCode::kUnavailable);
}

TEST_F(InprocLink, NothingRunsAfterCloseNotEvenFromWithinACallback) {
  Make(2);
  at(1).close_on_message = true;
  at(1).Send(0, 5, 100);
  at(0).Send(1, 1, 100);
  at(0).Send(1, 2, 100);
  at(0).PollOnce();
  for (int i = 0; i < 3; ++i) at(1).PollOnce();
  EXPECT_EQ(at(1).received.size(), 1U);
  EXPECT_TRUE(at(1).sent.empty());
  EXPECT_TRUE(at(1).down.empty());
  Settle();
  EXPECT_EQ(at(0).down.size(), 1U);
}

TEST_F(InprocLink, RanksConnectOnceAndMayBeAlone) {
  Make(1);
  EXPECT_EQ(group_->arena(0).members(), std::vector<int>{0});
  EXPECT_TRUE(group_->arena(0).Allocate(100).ok());
  Endpoint other;
  EXPECT_EQ(group_->Connect(0, other.poller(), &other).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(group_->Connect(1, other.poller(), &other).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(InprocGroup::Create(0, {kArena, kFifo}).ok());
  const auto small = InprocGroup::Create(8, {std::size_t{1} << 20, 1 << 20});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), StatusCode::kResourceExhausted);
}

TEST_F(InprocLink, LeavesNoDescriptorBehind) {
  const std::size_t before = CountEntries("/proc/self/fd");
  for (int round = 0; round < 3; ++round) {
    Make(4);
    at(0).Send(1, 1, 100);
    Settle();
    at(2).Drop(0);
    Settle();
    ranks_.clear();
    group_.reset();
  }
  EXPECT_EQ(CountEntries("/proc/self/fd"), before);
}

}  // namespace
}  // namespace gradientflow
