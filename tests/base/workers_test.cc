#include "gradientflow/base/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace gradientflow {
namespace {

using std::chrono::microseconds;

// Waits until *value is at least `least`; other threads see to that.
void AwaitAtLeast(const std::atomic<int>& value, int least) {
  while (value.load() < least) std::this_thread::yield();
}

class EveryWorkers : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  Workers workers_{GetParam().first, microseconds(GetParam().second)};
};

INSTANTIATE_TEST_SUITE_P(ThreadsAndSpin, EveryWorkers,
                         ::testing::Values(std::pair(1, 0), std::pair(2, 0),
                                           std::pair(3, 50), std::pair(7, 0)));

TEST_P(EveryWorkers, RunsEachPartOnce) {
  for (std::size_t count = 0; count < 200; count += 1 + count / 3) {
    std::vector<int> runs(count, 0);
    EXPECT_TRUE(workers_
                    .Run(count,
                         [&](std::size_t i) {
                           ++runs[i];
                           return Status();
                         })
                    .ok());
    EXPECT_EQ(runs, std::vector<int>(count, 1));
  }
}

TEST_P(EveryWorkers, ReturnsTheErrorOfAPartAndRunsTheOthers) {
  std::atomic<int> ran{0};
  const auto part = [&](std::size_t i) {
    ++ran;
    return i == 5 ? Status(StatusCode::kDataLoss, "five") : Status();
  };
  EXPECT_EQ(workers_.Run(9, part).message(), "five");
  EXPECT_EQ(ran.load(), 9);
  // The next call knows nothing of it.
  EXPECT_TRUE(workers_.Run(4, [](std::size_t) { return Status(); }).ok());
}

TEST_P(EveryWorkers, RunsAPartsOwnCallOnThePartsThread) {
  std::atomic<int> inner{0};
  const Status outer = workers_.Run(3, [&](std::size_t) {
    const std::thread::id here = std::this_thread::get_id();
    return workers_.Run(4, [&, here](std::size_t) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      ++inner;
      return Status();
    });
  });
  EXPECT_TRUE(outer.ok());
  EXPECT_EQ(inner.load(), 12);
}

TEST_P(EveryWorkers, ServeSeveralCallers) {
  constexpr int kCallers = 3;
  constexpr std::size_t kParts = 64;
  std::atomic<int> ran{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      for (int call = 0; call < 50; ++call) {
        std::vector<std::size_t> values(kParts, 0);
        const Status status = workers_.Run(kParts, [&](std::size_t i) {
          values[i] = i;
          ++ran;
          return Status();
        });
        EXPECT_TRUE(status.ok());
        for (std::size_t i = 0; i < kParts; ++i) ASSERT_EQ(values[i], i);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ran.load(), kCallers * 50 * static_cast<int>(kParts));
}

// Two parts that wait for each other need two threads.
TEST(Workers, RunPartsAtTheSameTime) {
  Workers workers(2, microseconds(0));
  std::atomic<int> inside{0};
  EXPECT_TRUE(workers
                  .Run(2,
                       [&](std::size_t) {
                         ++inside;
                         AwaitAtLeast(inside, 2);
                         return Status();
                       })
                  .ok());
}

TEST(Workers, CountTheCallerAsAThread) {
  EXPECT_EQ(Workers(4, microseconds(0)).threads(), 4);
  const std::thread::id here = std::this_thread::get_id();
  Workers alone(1, microseconds(0));
  EXPECT_TRUE(alone
                  .Run(5,
                       [&](std::size_t) {
                         EXPECT_EQ(std::this_thread::get_id(), here);
                         return Status();
                       })
                  .ok());
}

TEST(Workers, ASmallPassWakesNobody) {
  Workers workers(3, microseconds(0));
  const std::thread::id here = std::this_thread::get_id();
  const auto part = [&](std::size_t) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    return Status();
  };
  EXPECT_TRUE(RunPass(&workers, 10, 1000, part).ok());
  EXPECT_TRUE(RunPass(nullptr, 10, 1 << 20, part).ok());
}

}  // namespace
}  // namespace gradientflow
