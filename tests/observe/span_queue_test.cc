#include "gradientflow/observe/span_queue.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

Span Numbered(std::uint64_t id) {
  Span span;
  span.id = id;
  span.bytes = ~id;
  return span;
}

TEST(SpanQueue, RoundsItsCapacityUpToAPowerOfTwo) {
  EXPECT_EQ(SpanQueue(0).capacity(), 2U);
  EXPECT_EQ(SpanQueue(5).capacity(), 8U);
  EXPECT_EQ(SpanQueue(64).capacity(), 64U);
}

TEST(SpanQueue, KeepsTheOrderAcrossManyLaps) {
  SpanQueue queue(4);
  Span span;
  std::uint64_t pushed = 0;
  std::uint64_t popped = 0;
  for (int lap = 0; lap < 100; ++lap) {
    for (int i = 0; i < 1 + lap % 4; ++i) {
      ASSERT_TRUE(queue.Push(Numbered(pushed++)));
    }
    while (queue.Pop(&span)) ASSERT_EQ(span.id, popped++);
  }
  EXPECT_EQ(popped, pushed);
}

TEST(SpanQueue, RefusesWhenFullAndGivesNothingWhenEmpty) {
  SpanQueue queue(4);
  Span span;
  EXPECT_FALSE(queue.Pop(&span));
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(queue.Push(Numbered(i)));
  EXPECT_FALSE(queue.Push(Numbered(4)));
  EXPECT_TRUE(queue.Pop(&span));
  EXPECT_EQ(span.id, 0U);
  EXPECT_TRUE(queue.Push(Numbered(5)));
  EXPECT_FALSE(queue.Push(Numbered(6)));
}

TEST(SpanQueue, LosesNothingAndTearsNothingBetweenThreads) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 5000;
  SpanQueue queue(64);
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> running{kThreads};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        if (!queue.Push(Numbered(t * kEach + i))) ++refused;
      }
      --running;
    });
  }
  // Per producer, in order.
  std::vector<std::uint64_t> next(kThreads, 0);
  std::uint64_t popped = 0;
  const auto pop_all = [&] {
    Span span;
    while (queue.Pop(&span)) {
      ++popped;
      ASSERT_EQ(span.bytes, ~span.id);
      const std::uint64_t thread = span.id / kEach;
      ASSERT_GE(span.id % kEach, next[thread]);
      next[thread] = span.id % kEach + 1;
    }
  };
  while (running > 0) {
    pop_all();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  pop_all();
  EXPECT_EQ(popped + refused, kThreads * kEach);
}

}  // namespace
}  // namespace gradientflow
