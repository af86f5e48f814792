#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "transports/arena.h"
#include "transports/inproc/create.h"
#include "transports/link.h"

// A lost wake-up shows as a poll that runs into the watchdog of Await().
namespace gradientflow {
namespace {

using testing::Intact;
using testing::LinkOwner;

constexpr std::size_t kArena = std::size_t{16} << 20;

std::shared_ptr<InprocGroup> Group(int size, std::size_t fifo_bytes) {
  return std::move(InprocGroup::Create(size, {kArena, fifo_bytes})).value();
}

void ConnectTo(InprocGroup& group, int rank, LinkOwner* end) {
  auto links = group.Connect(rank, end->poller(), end);
  ASSERT_TRUE(links.ok()) << links.status().ToString();
  end->Take(std::move(links).value());
}

TEST(InprocSleep, IsAllowedOnlyWhenThereIsNothingToDo) {
  auto group = Group(2, 4096);
  LinkOwner a;
  LinkOwner b;
  ConnectTo(*group, 0, &a);
  ConnectTo(*group, 1, &b);
  EXPECT_TRUE(b.to(0).PrepareToSleep());
  b.to(0).WakeUp();
  EXPECT_FALSE(b.poller()->Poll(std::chrono::nanoseconds(0)));
  a.Send(1, 1, 10);
  EXPECT_FALSE(a.to(1).PrepareToSleep()) << "a message waits to be written";
  a.PollOnce();
  EXPECT_FALSE(b.to(0).PrepareToSleep()) << "a message waits to be read";
  while (b.PollOnce()) {
  }
  EXPECT_TRUE(b.to(0).PrepareToSleep());
  a.Send(1, 2, 10);
  a.PollOnce();
  EXPECT_TRUE(b.poller()->Poll(std::chrono::seconds(20))) << "not rung";
  b.to(0).WakeUp();
  a.Send(1, 3, 10);
  a.PollOnce();
  EXPECT_FALSE(b.poller()->Poll(std::chrono::nanoseconds(0)))
      << "rung though awake";
}

TEST(InprocSleep, APublishedSlotWakesSleepersAndKeepsOthersAwake) {
  auto group = Group(3, 4096);
  LinkOwner ends[3];
  for (int rank = 0; rank < 3; ++rank) ConnectTo(*group, rank, &ends[rank]);
  for (const int peer : {0, 2}) {
    EXPECT_TRUE(ends[1].to(peer).PrepareToSleep());
  }
  group->arena(0).slot(0, 3).arrived.store(1, std::memory_order_release);
  group->arena(0).RingSleepers();
  group->arena(0).RingMissed();
  EXPECT_TRUE(ends[1].poller()->Poll(std::chrono::seconds(20)));
  for (const int peer : {0, 2}) ends[1].to(peer).WakeUp();
  // Rank 2 was awake, but may have checked the slots before.
  EXPECT_FALSE(ends[2].to(0).PrepareToSleep());
  EXPECT_TRUE(ends[2].to(0).PrepareToSleep());
  ends[2].to(0).WakeUp();
}

TEST(InprocSleep, SlotsAloneLoseNoWakeUp) {
  constexpr std::uint64_t kRounds = 3000;
  constexpr int kSize = 3;
  auto group = Group(kSize, 4096);
  LinkOwner ends[kSize];
  for (int rank = 0; rank < kSize; ++rank) {
    ConnectTo(*group, rank, &ends[rank]);
  }
  // One barrier per round: no rank is ever more than one round ahead.
  const auto run = [&](int me) {
    SharedArena& arena = group->arena(me);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      arena.slot(me, 0).offset = round * 10 + me;
      arena.slot(me, 0).arrived.store(round, std::memory_order_release);
      arena.RingSleepers();
      arena.RingMissed();
      for (const int peer : arena.members()) {
        SyncSlot& slot = arena.slot(peer, 0);
        ASSERT_TRUE(ends[me].Await([&] {
          return slot.arrived.load(std::memory_order_acquire) >= round;
        })) << "rank "
            << me << " round " << round;
      }
      for (const int peer : arena.members()) {
        ASSERT_EQ(arena.slot(peer, 0).offset, round * 10 + peer);
      }
      // Read before the owner overwrites it.
      arena.slot(me, 1).arrived.store(round, std::memory_order_release);
      arena.RingSleepers();
      arena.RingMissed();
      for (const int peer : arena.members()) {
        SyncSlot& slot = arena.slot(peer, 1);
        ASSERT_TRUE(ends[me].Await([&] {
          return slot.arrived.load(std::memory_order_acquire) >= round;
        }));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < kSize; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
}

TEST(InprocSleep, ManyRanksExchangeRandomSizesFromTheirOwnThreads) {
  constexpr int kSize = 5;
  constexpr int kCount = 60;
  auto group = Group(kSize, 8192);
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int me = 0; me < kSize; ++me) {
    threads.emplace_back([&, me] {
      LinkOwner end;
      ConnectTo(*group, me, &end);
      std::mt19937 random(me);
      for (int i = 0; i < kCount; ++i) {
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer != me) end.Send(peer, i, random() % (i % 8 ? 500 : 30000));
        }
        end.PollOnce();
      }
      ASSERT_TRUE(end.Await([&] {
        std::size_t queued = 0;
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer != me) queued += end.to(peer).queued_messages();
        }
        return queued == 0 && end.messages == kCount * (kSize - 1);
      }));
      std::vector<std::uint64_t> next(kSize);
      for (const auto& message : end.received) {
        ASSERT_TRUE(Intact(message));
        ASSERT_EQ(message.header.tag, next[message.peer]++);
      }
      ++finished;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished.load(), kSize);
}

}  // namespace
}  // namespace gradientflow
