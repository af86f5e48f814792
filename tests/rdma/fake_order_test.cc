#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rdma/fake_ends.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/rdma/verbs_end.h"

// When bytes move, for what a transport may rely upon: nothing before its
// completion, and no order between two pairs.
namespace gradientflow {
namespace {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GF_UNDER_TSAN 1
#endif
#endif

using std::chrono::milliseconds;

// Runs what touches memory too early, and works by chance. The thread sanitizer
// must see it.
void Racing(const std::function<void()>& body) {
#if defined(GF_UNDER_TSAN)
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        body();
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
#else
  body();
#endif
}

void ChangeWhatIsSent() {
  FakeEnds ends;
  ends.a.memory()[0] = 1;
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  ends.a.memory()[0] = 2;  // It is not completed, so this is too early.
  EXPECT_EQ(ends.a.Await(1).size(), 1U);
  EXPECT_EQ(ends.b.memory()[0], 2);
}

TEST(FakeOrder, WhatIsSentIsReadWhenItTravels) { Racing(&ChangeWhatIsSent); }

void WatchMemory() {
  FakeVerbsOptions options = Stepped();
  options.late_share = 1;  // Packets of one message do not come together.
  FakeEnds ends(options);
  constexpr std::uint32_t kBytes = 40000;
  std::fill(ends.a.memory().begin(), ends.a.memory().end(), 'x');
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, kBytes)), 0);
  int halfway = 0;
  while (ends.a.Poll().empty()) {
    ASSERT_TRUE(ends.fake.Step());
    const std::vector<char>& seen = ends.b.memory();
    const bool first = seen[0] == 'x';
    const bool last = seen[kBytes - 1] == 'x';
    EXPECT_TRUE(last || !first);
    halfway += last && !first ? 1 : 0;
  }
  EXPECT_GT(halfway, 0);
}

TEST(FakeOrder, TheLastBytesOfALongWriteComeFirst) { Racing(&WatchMemory); }

TEST(FakeOrder, MessagesTravelTogetherAndEachTakesItsTime) {
  FakeEnds ends;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 5000)), 0);
  }
  ends.fake.Advance(milliseconds(2) - Clock::Time(1));
  EXPECT_TRUE(ends.a.Poll().empty());
  ends.fake.Advance(Clock::Time(1));
  EXPECT_EQ(ends.a.Poll().size(), 10U);
}

TEST(FakeOrder, TimeMayBeTheTests) {
  ManualClock clock;
  FakeVerbsOptions options = Stepped();
  options.clock = &clock;
  FakeEnds ends(options);
  ASSERT_EQ(ends.a.Post(ends.a.Write(ends.b, 0, 0, 1)), 0);
  clock.Advance(milliseconds(5));
  EXPECT_TRUE(ends.a.Poll().empty());
  ends.fake.Advance(milliseconds(1));
  EXPECT_EQ(clock.Now(), milliseconds(6));
  EXPECT_EQ(ends.a.Poll().size(), 1U);
}

// Several pairs of host 0 write to one of host 1 each.
TEST(FakeOrder, PairsOvertakeEachOtherAndNoPairItself) {
  FakeVerbsOptions options = Stepped();
  options.delay = milliseconds(0);
  FakeVerbs fake(2, options);
  const auto step = [&fake] {
    if (fake.Pending() > 0) fake.Step();
  };
  constexpr std::size_t kPairs = 4;
  constexpr std::uint64_t kMessages = 16;
  std::vector<std::unique_ptr<VerbsEnd>> ends;
  for (std::size_t i = 0; i < 2 * kPairs; ++i) {
    ends.push_back(std::make_unique<VerbsEnd>(
        fake.api(i < kPairs ? 0 : 1), i < kPairs ? "fake0" : "fake1", step));
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    ends[i]->Connect(ends[i + kPairs]->address());
    ends[i + kPairs]->Connect(ends[i]->address());
  }
  for (std::uint64_t m = 0; m < kMessages; ++m) {
    for (std::size_t i = 0; i < kPairs; ++i) {
      ibv_send_wr* const wr = ends[i]->Write(*ends[i + kPairs], 0, 0, 10);
      wr->wr_id = m;
      ASSERT_EQ(ends[i]->Post(wr), 0);
    }
  }
  std::vector<std::size_t> seen;
  std::vector<std::uint64_t> next(kPairs);
  while (fake.Step()) {
    for (std::size_t i = 0; i < kPairs; ++i) {
      for (const ibv_wc& wc : ends[i]->Poll()) {
        EXPECT_EQ(wc.wr_id, next[i]++);
        seen.push_back(i);
      }
    }
  }
  EXPECT_EQ(seen.size(), kPairs * kMessages);
  // In the order of posting, each would be followed by the next pair.
  std::size_t in_turn = 0;
  for (std::size_t k = 1; k < seen.size(); ++k) {
    in_turn += seen[k] == (seen[k - 1] + 1) % kPairs ? 1 : 0;
  }
  EXPECT_LT(in_turn, seen.size() * 2 / 3);
}

TEST(FakeOrder, WhoSleepsIsWokenThoughNobodyCalls) {
  FakeVerbsOptions options;
  options.late_share = 1;
  options.late_by = milliseconds(2);
  FakeVerbs fake(2, options);
  const auto nothing = [] {};
  VerbsEnd a(fake.api(0), "fake0", nothing);
  VerbsEnd b(fake.api(1), "fake1", nothing);
  a.Connect(b.address());
  b.Connect(a.address());
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(b.verbs().req_notify_cq(b.queue(), 0), 0);
    ASSERT_EQ(b.PostReceive(i), 0);
    ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 100, 1)), 0);
    pollfd waits = {b.channel()->fd, POLLIN, 0};
    ASSERT_EQ(::poll(&waits, 1, 10000), 1);
    ibv_cq* queue = nullptr;
    void* owner = nullptr;
    ASSERT_EQ(b.verbs().get_cq_event(b.channel(), &queue, &owner), 0);
    b.verbs().ack_cq_events(queue, 1);
    EXPECT_EQ(b.Poll().size(), 1U);
    EXPECT_EQ(a.Await(1).size(), 1U);
  }
}

// A rank of a job in which each pair of ranks plays: whoever has got the block
// adds one to its bytes and sends it back.
class Player {
 public:
  Player(FakeVerbs* fake, int rank, int ranks) : rank_(rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      ends_.push_back(std::make_unique<VerbsEnd>(
          fake->api(rank), "fake" + std::to_string(rank), [] {}));
    }
  }

  VerbsEnd& To(int peer) { return *ends_[static_cast<std::size_t>(peer)]; }

  void Play(std::vector<std::unique_ptr<Player>>* players, int rounds) {
    const int ranks = static_cast<int>(players->size());
    std::vector<int> left(players->size(), rounds);
    left[static_cast<std::size_t>(rank_)] = 0;
    for (int peer = rank_ + 1; peer < ranks; ++peer) Serve(players, peer);
    while (std::accumulate(left.begin(), left.end(), 0) > 0) {
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank_) continue;
        for (const ibv_wc& wc : To(peer).Poll()) {
          ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
          if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
          int& more = left[static_cast<std::size_t>(peer)];
          --more;
          // Who began is the last to get it.
          if (more > 0 || peer < rank_) Serve(players, peer);
        }
      }
      std::this_thread::yield();
    }
  }

 private:
  void Serve(std::vector<std::unique_ptr<Player>>* players, int peer) {
    VerbsEnd& end = To(peer);
    VerbsEnd& other = (*players)[static_cast<std::size_t>(peer)]->To(rank_);
    for (int i = 0; i < 2000; ++i) ++end.memory()[static_cast<std::size_t>(i)];
    ASSERT_EQ(end.PostReceive(1), 0);
    ASSERT_EQ(end.Post(end.Notice(other, 0, 0, 2000, 1)), 0);
  }

  const int rank_;
  std::vector<std::unique_ptr<VerbsEnd>> ends_;
};

class FakeOrderRanks : public ::testing::TestWithParam<int> {};

TEST_P(FakeOrderRanks, RanksAreThreads) {
  constexpr int kRounds = 40;
  const int ranks = GetParam();
  FakeVerbsOptions options;
  options.seed = static_cast<std::uint64_t>(ranks);
  FakeVerbs fake(ranks, options);
  std::vector<std::unique_ptr<Player>> players;
  for (int rank = 0; rank < ranks; ++rank) {
    players.push_back(std::make_unique<Player>(&fake, rank, ranks));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      VerbsEnd& end = players[static_cast<std::size_t>(rank)]->To(peer);
      end.Connect(players[static_cast<std::size_t>(peer)]->To(rank).address());
      // For the first message, of the rank before.
      if (peer < rank) {
        ASSERT_EQ(end.PostReceive(0), 0);
      }
    }
  }
  std::vector<std::thread> threads;
  for (const auto& player : players) {
    threads.emplace_back([&] { player->Play(&players, kRounds); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      VerbsEnd& first = players[static_cast<std::size_t>(peer)]->To(rank);
      EXPECT_EQ(first.memory()[1999], 2 * kRounds);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, FakeOrderRanks, ::testing::Values(2, 3, 5, 8));

// b's thread reads when it may, or when the message has arrived and it has not
// been told.
void ReadAnotherRanksWrite(bool early) {
  FakeVerbs fake(2);
  const auto nothing = [] {};
  VerbsEnd a(fake.api(0), "fake0", nothing);
  VerbsEnd b(fake.api(1), "fake1", nothing);
  a.Connect(b.address());
  b.Connect(a.address());
  ASSERT_EQ(b.PostReceive(1), 0);
  std::thread reader([&] {
    // Calls of verbs order nothing by themselves.
    while (early && fake.stats(0).delivered == 0) b.PostReceive(2);
    if (!early) b.Await(1);
    EXPECT_EQ(b.memory()[0], 5);
  });
  a.memory()[0] = 5;
  ASSERT_EQ(a.Post(a.Notice(b, 0, 0, 1, 1)), 0);
  reader.join();
}

TEST(FakeOrder, WhoIsToldMayRead) { ReadAnotherRanksWrite(false); }

TEST(FakeOrder, WhoIsNotToldYetRaces) {
  Racing([] { ReadAnotherRanksWrite(true); });
}

}  // namespace
}  // namespace gradientflow
