#include "transports/early_credit.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>

namespace gradientflow {
namespace {

TEST(EarlyBudget, GivesAllPeersTogetherNoMoreThanItHas) {
  for (const int peers : {0, 1, 2, 7, 15, 511, 4095}) {
    for (const std::size_t bytes : {0UL, 1UL, 1000UL, 67'108'864UL}) {
      EarlyBudget budget(bytes, peers);
      std::size_t given = budget.share() * static_cast<std::size_t>(peers);
      EXPECT_LE(given, bytes / 2);
      std::size_t times = 0;
      for (std::size_t more = budget.TakeFromReserve(); more > 0;
           more = budget.TakeFromReserve()) {
        EXPECT_LE(more, budget.share());
        given += more;
        ++times;
      }
      EXPECT_LE(given, bytes);
      if (budget.share() > 0) {
        EXPECT_GE(times, static_cast<std::size_t>(peers)) << "as many again";
      }
    }
  }
}

TEST(Credit, CoversPayloadsAndTheirEntriesButNoEmptyMessages) {
  CreditToSend send(2000);
  CreditToReceive receive(2000);
  EXPECT_FALSE(send.Spend(2000 - 255));
  EXPECT_TRUE(send.Spend(2000 - 256));
  EXPECT_EQ(send.left(), 0U);
  EXPECT_FALSE(send.Spend(1));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(send.Spend(0));
  EXPECT_FALSE(receive.Charge(2000 - 255));
  EXPECT_TRUE(receive.Charge(2000 - 256));
  EXPECT_FALSE(receive.Charge(1));
  EXPECT_FALSE(receive.Charge(std::uint64_t{1} << 40));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(receive.Charge(0));
  EXPECT_EQ(receive.Release(0), 0U);
  EXPECT_EQ(receive.Release(2000 - 256), 2000U);
}

TEST(Credit, CannotGrowBeyondTheBudget) {
  CreditToSend send(1000);
  EXPECT_FALSE(send.Add(1001, 2000));
  EXPECT_FALSE(send.Add(~std::uint64_t{0}, 2000));
  EXPECT_TRUE(send.Add(1000, 2000));
  EXPECT_FALSE(send.Add(1, 2000));
  EXPECT_EQ(send.left(), 2000U);
}

// A pair of ranks, of which the second takes messages in random order and tells
// the first of it with a delay.
TEST(Credit, BothSidesAgreeAndHalfOfItIsAlwaysAtWorkOrFree) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::size_t limit = random() % 100'000;
    CreditToSend send(limit);
    CreditToReceive receive(limit);
    std::deque<std::uint64_t> sent;
    std::deque<std::uint64_t> held;
    std::deque<std::uint64_t> told;
    std::uint64_t under_way = 0;
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t bytes = random() % (1 + random() % 30'000);
      switch (random() % 4) {
        case 0:
          if (!send.Spend(bytes)) break;
          sent.push_back(bytes);
          under_way += EarlyCost(bytes);
          break;
        case 1:
          if (sent.empty()) break;
          ASSERT_TRUE(receive.Charge(sent.front())) << "its sender had credit";
          held.push_back(sent.front());
          sent.pop_front();
          break;
        case 2:
          if (held.empty()) break;
          std::swap(held.front(), held[random() % held.size()]);
          under_way -= EarlyCost(held.front());
          if (const std::uint64_t back = receive.Release(held.front())) {
            told.push_back(back);
          }
          held.pop_front();
          break;
        default:
          if (random() % 50 == 0) {
            receive.Grow(1000);
            told.push_back(1000);
            limit += 1000;
          }
          if (told.empty()) break;
          ASSERT_TRUE(send.Add(told.front(), limit));
          told.pop_front();
      }
      ASSERT_LE(under_way, limit);
    }
    for (; !sent.empty(); sent.pop_front()) {
      ASSERT_TRUE(receive.Charge(sent.front()));
      held.push_back(sent.front());
    }
    for (; !held.empty(); held.pop_front()) {
      const std::uint64_t back = receive.Release(held.front());
      if (back > 0) told.push_back(back);
    }
    for (const std::uint64_t bytes : told) ASSERT_TRUE(send.Add(bytes, limit));
    // Less than half of it waits to be given back.
    ASSERT_GE(send.left(), limit - limit / 2);
    ASSERT_LE(send.left(), limit);
  }
}

}  // namespace
}  // namespace gradientflow
