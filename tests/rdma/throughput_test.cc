#include "transports/rdma/throughput.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>

// Messages that are given to the way that is quickest for them, on ways that
// are played by a clock.
namespace gradientflow {
namespace {

using std::chrono::microseconds;

TEST(Throughput, BelievesTheDriverUntilItHasMeasured) {
  Throughput fast(100);
  EXPECT_DOUBLE_EQ(fast.SecondsFor(12'500'000), 1e-3);
  Throughput silent(0);
  EXPECT_GT(silent.SecondsFor(1), 0);
  fast.Began(1'000'000, microseconds(0));
  EXPECT_DOUBLE_EQ(fast.SecondsFor(1'000'000), 2e6 / 12.5e9) << "behind it";
  fast.Ended(1'000'000, microseconds(10'000));
  EXPECT_DOUBLE_EQ(fast.SecondsFor(1'000'000), 1e-2) << "as measured";
}

TEST(Throughput, ShortMessagesSayNothingOfARate) {
  Throughput way(8);
  for (int i = 0; i < 1000; ++i) {
    way.Began(64, microseconds(100 * i));
    way.Ended(64, microseconds(100 * i + 50));
  }
  EXPECT_DOUBLE_EQ(way.SecondsFor(1'000'000'000), 1.0);
}

TEST(Throughput, AWayThatIsNeverIdleIsMeasuredAllTheSame) {
  Throughput way(8);
  way.Began(1'000'000, microseconds(0));
  for (int i = 1; i < 50; ++i) {
    way.Began(1'000'000, microseconds(10'000 * i));
    way.Ended(1'000'000, microseconds(10'000 * i));
  }
  EXPECT_NEAR(way.SecondsFor(0), 1e-2, 2e-3) << "what is on the way";
}

// A sender with 8 messages under way, by ways of so many bytes per microsecond.
// The driver says that all are alike. Returns the messages that each has got.
template <std::size_t kWays>
std::array<int, kWays> Play(const std::array<double, kWays>& rates) {
  constexpr std::size_t kBytes = 256 << 10;
  std::array<Throughput, kWays> ways = {Throughput(8), Throughput(8)};
  std::array<std::deque<Clock::Time>, kWays> ends;  // Of what is under way.
  std::array<int, kWays> got = {};
  Clock::Time now{0};
  for (int i = 0; i < 2000; ++i) {
    std::size_t under_way = 0;
    for (const auto& of : ends) under_way += of.size();
    if (under_way == 8) {
      std::size_t first = kWays;
      for (std::size_t w = 0; w < kWays; ++w) {
        if (ends[w].empty()) continue;
        if (first == kWays || ends[w].front() < ends[first].front()) first = w;
      }
      now = ends[first].front();
      ends[first].pop_front();
      ways[first].Ended(kBytes, now);
    }
    std::size_t best = 0;
    for (std::size_t w = 1; w < kWays; ++w) {
      if (ways[w].SecondsFor(kBytes) < ways[best].SecondsFor(kBytes)) best = w;
    }
    const Clock::Time begin = ends[best].empty() ? now : ends[best].back();
    ways[best].Began(kBytes, now);
    ends[best].push_back(begin + FromSeconds(kBytes / rates[best] * 1e-6));
    ++got[best];
  }
  return got;
}

TEST(Throughput, EachWayGetsWhatItCarries) {
  const auto alike = Play<2>({1000, 1000});
  EXPECT_NEAR(alike[0], 1000, 20);
  const auto double_rate = Play<2>({2000, 1000});
  EXPECT_NEAR(double_rate[0], 1333, 60);
  const auto slow = Play<2>({10'000, 100});
  EXPECT_GT(slow[0], 1960) << "two of them wait for the slow way at most";
}

}  // namespace
}  // namespace gradientflow
