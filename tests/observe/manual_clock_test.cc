#include "gradientflow/base/manual_clock.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

TEST(ManualClock, MovesOnlyWhenTold) {
  ManualClock clock(std::chrono::seconds(3));
  EXPECT_EQ(clock.Now(), std::chrono::seconds(3));
  EXPECT_EQ(clock.Now(), std::chrono::seconds(3));
  clock.Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(Seconds(clock.Now()), 4.5);
}

TEST(ManualClock, AddsUpWhatManyThreadsAdvance) {
  ManualClock clock;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&clock] {
      for (int i = 0; i < 1000; ++i) clock.Advance(Clock::Time(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clock.Now(), Clock::Time(4000));
}

}  // namespace
}  // namespace gradientflow
