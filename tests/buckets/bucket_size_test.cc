#include "gradientflow/buckets/bucket_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace gradientflow {
namespace {

using Sizes = std::vector<std::size_t>;

Sizes Ends(const std::vector<BucketBounds>& buckets) {
  Sizes ends;
  for (const auto& bucket : buckets) ends.push_back(bucket.end_tensor);
  return ends;
}

// The paper's rule, one tensor after the other.
Sizes EndsByTheRule(std::size_t theta, const Sizes& tensors,
                    std::size_t element_bytes) {
  Sizes ends;
  std::size_t waiting = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    waiting += tensors[t] * element_bytes;
    if (waiting > theta) {
      ends.push_back(t + 1);
      waiting = 0;
    }
  }
  if (waiting > 0) ends.push_back(tensors.size());
  return ends;
}

TEST(StaticBuckets, CloseOnlyWhenStrictlyLargerThanTheta) {
  const Sizes tensors{10, 10, 10, 10, 5};
  EXPECT_EQ(Ends(StaticBuckets(40, tensors, 4)), (Sizes{2, 4, 5}));
  EXPECT_EQ(Ends(StaticBuckets(39, tensors, 4)), (Sizes{1, 2, 3, 4, 5}));
  EXPECT_EQ(Ends(StaticBuckets(41, tensors, 4)), (Sizes{2, 4, 5}));
  EXPECT_EQ(Ends(StaticBuckets(0, tensors, 4)), (Sizes{1, 2, 3, 4, 5}));
  EXPECT_EQ(Ends(StaticBuckets(kInfiniteTheta, tensors, 4)), (Sizes{5}));
}

TEST(StaticBuckets, LeaveNoElementOutAndNoBucketEmpty) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    Sizes tensors(random() % 30);
    for (auto& n : tensors) n = random() % 4 == 0 ? 0 : random() % 1000;
    const std::size_t theta = random() % 4000;
    const auto buckets = StaticBuckets(theta, tensors, 2);
    std::size_t tensor = 0;
    std::size_t element = 0;
    for (const auto& bucket : buckets) {
      EXPECT_EQ(bucket.first_tensor, tensor);
      EXPECT_EQ(bucket.begin_element, element);
      EXPECT_GT(bucket.end_element, bucket.begin_element);
      for (; tensor < bucket.end_tensor; ++tensor) element += tensors[tensor];
      EXPECT_EQ(bucket.end_element, element);
    }
    EXPECT_EQ(element,
              std::accumulate(tensors.begin(), tensors.end(), std::size_t{0}));
    for (; tensor < tensors.size(); ++tensor) EXPECT_EQ(tensors[tensor], 0U);
  }
}

TEST(StaticBuckets, FollowThePapersRule) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    Sizes tensors(1 + random() % 30);
    for (auto& n : tensors) n = 1 + random() % 1000;
    const std::size_t theta = random() % 4000;
    EXPECT_EQ(Ends(StaticBuckets(theta, tensors, 2)),
              EndsByTheRule(theta, tensors, 2));
  }
}

TEST(StaticBuckets, OfNothingAreNone) {
  EXPECT_TRUE(StaticBuckets(0, {}, 4).empty());
  EXPECT_TRUE(StaticBuckets(0, Sizes{0, 0}, 4).empty());
}

TEST(Forecast, RunsBucketsOneAfterTheOtherBehindBackward) {
  // Two buckets of 100 bytes, 10 s each, ready at 1 s and 4 s.
  const BackwardProfile profile{{25, 25}, {1, 4}};
  const CallCost cost{2, 0.08};
  const auto each = Forecast(profile, 0, 4, cost);
  EXPECT_EQ(each.buckets, 2U);
  EXPECT_DOUBLE_EQ(each.finish_seconds, 21);
  EXPECT_DOUBLE_EQ(each.exposed_seconds, 17);
  const auto one = Forecast(profile, kInfiniteTheta, 4, cost);
  EXPECT_EQ(one.buckets, 1U);
  EXPECT_DOUBLE_EQ(one.finish_seconds, 4 + 2 + 16);
}

TEST(Forecast, WaitsForEarlierTensorsOfThePool) {
  // The second tensor is written first: nothing is sent before the first.
  const BackwardProfile profile{{10, 10}, {5, 1}};
  EXPECT_DOUBLE_EQ(Forecast(profile, 0, 1, {1, 0.1}).finish_seconds, 9);
}

TEST(Forecast, EndsWithBackwardIfAllIsHidden) {
  // An empty last tensor prolongs backward.
  const BackwardProfile profile{{10, 0}, {1, 50}};
  const auto forecast = Forecast(profile, 0, 1, {1, 0.1});
  EXPECT_DOUBLE_EQ(forecast.finish_seconds, 50);
  EXPECT_DOUBLE_EQ(forecast.exposed_seconds, 0);
}

TEST(CandidateThetas, SpanNothingToEverything) {
  EXPECT_EQ(CandidateThetas(1000), (Sizes{0, kInfiniteTheta}));
  const auto thetas = CandidateThetas(100 << 20);
  EXPECT_TRUE(std::is_sorted(thetas.begin(), thetas.end()));
  EXPECT_EQ(thetas.front(), 0U);
  EXPECT_EQ(thetas.back(), kInfiniteTheta);
  for (std::size_t theta = 64 << 10; theta <= 100 << 20; theta *= 2) {
    EXPECT_TRUE(std::binary_search(thetas.begin(), thetas.end(), theta));
  }
  EXPECT_LE(thetas[thetas.size() - 2], std::size_t{100} << 20);
}

// Like a convolutional network: a few large tensors first, many small ones in
// between, ready at uneven intervals.
BackwardProfile RandomProfile(unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  BackwardProfile profile;
  double now = 0;
  const std::size_t tensors = 10 + random() % 190;
  for (std::size_t t = 0; t < tensors; ++t) {
    // 2^6 to 2^22 elements, evenly distributed in the exponent.
    profile.tensor_elements.push_back(
        static_cast<std::size_t>(std::exp2(6 + 16 * uniform(random))));
    now += 2e-3 * uniform(random) * uniform(random);
    profile.ready_seconds.push_back(now);
  }
  return profile;
}

// Tries every theta that leads to different buckets: one less than the bytes of
// each run of tensors.
double BestOfAllThetas(const BackwardProfile& profile, const CallCost& cost) {
  std::set<std::size_t> thetas{0, kInfiniteTheta};
  const auto& sizes = profile.tensor_elements;
  for (std::size_t first = 0; first < sizes.size(); ++first) {
    std::size_t bytes = 0;
    for (std::size_t t = first; t < sizes.size(); ++t) {
      bytes += 2 * sizes[t];
      thetas.insert(bytes - 1);
    }
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t theta : thetas) {
    best = std::min(best, Forecast(profile, theta, 2, cost).finish_seconds);
  }
  return best;
}

TEST(ChooseBucketSize, IsWithinFivePercentOfAnExhaustiveSweep) {
  double worst = 1;
  for (unsigned seed = 0; seed < 12; ++seed) {
    const auto profile = RandomProfile(seed);
    for (double latency : {20e-6, 500e-6, 5e-3}) {
      for (double bandwidth : {1e8, 1e9, 1e10}) {
        const CallCost cost{latency, 1 / bandwidth};
        const auto choice = ChooseBucketSize(profile, 2, cost);
        const double best = BestOfAllThetas(profile, cost);
        const double ratio = choice.finish_seconds / best;
        worst = std::max(worst, ratio);
        EXPECT_LE(ratio, 1.05) << "seed " << seed << " latency " << latency
                               << " bandwidth " << bandwidth;
        EXPECT_GE(ratio, 1 - 1e-9);
      }
    }
  }
  RecordProperty("worst_permille", static_cast<int>(worst * 1000));
}

TEST(ChooseBucketSize, SendsOneBucketIfLatencyIsAllThatCosts) {
  const auto profile = RandomProfile(3);
  const auto choice = ChooseBucketSize(profile, 2, {1.0, 0});
  EXPECT_EQ(choice.buckets, 1U);
}

TEST(ChooseBucketSize, SendsEachTensorIfLatencyIsFree) {
  BackwardProfile profile;
  for (int t = 0; t < 20; ++t) {
    profile.tensor_elements.push_back(1 << 20);
    profile.ready_seconds.push_back(0.01 * (t + 1));
  }
  // 2 MiB in 10 ms: this keeps pace with backward only if nothing waits.
  const auto choice = ChooseBucketSize(profile, 2, {0, 0.01 / (2 << 20)});
  EXPECT_EQ(choice.buckets, 20U);
  EXPECT_NEAR(choice.exposed_seconds, 0.01, 1e-9);
}

TEST(ChooseBucketSize, TakesTheFewestBucketsAmongEquals) {
  // The one large tensor at the end hides all earlier communication.
  const BackwardProfile profile{{1 << 20, 1 << 20, 1 << 20, 1 << 24},
                                {0.1, 0.2, 0.3, 10}};
  const CallCost cost{1e-4, 1e-9};
  const auto choice = ChooseBucketSize(profile, 4, cost);
  const auto each = Forecast(profile, 0, 4, cost);
  EXPECT_DOUBLE_EQ(choice.finish_seconds, each.finish_seconds);
  EXPECT_EQ(choice.buckets, 2U);
}

TEST(ChooseBucketSize, TakesAnEmptyPool) {
  EXPECT_EQ(ChooseBucketSize({}, 4, {1e-5, 1e-9}).buckets, 0U);
}

TEST(DefaultBucketBytes, KeepsLatencyWithinFivePercentOfTheTransfer) {
  for (double latency : {20e-6, 100e-6, 1e-3}) {
    for (double per_byte : {1e-9, 4e-10, 8e-9}) {
      const auto bytes = DefaultBucketBytes({latency, per_byte});
      if (bytes == std::size_t{64} << 20) continue;
      EXPECT_LE(latency,
                0.05 * static_cast<double>(bytes) * per_byte * (1 + 1e-9));
      if (bytes == 256 << 10) continue;
      EXPECT_NEAR(0.05 * static_cast<double>(bytes) * per_byte, latency,
                  0.01 * latency);
    }
  }
}

TEST(DefaultBucketBytes, StaysWithinItsBoundsWhateverIsMeasured) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (double latency : {-1.0, 0.0, 1e-12, 1e3, infinity, nan}) {
    for (double per_byte : {-1.0, 0.0, 1e-12, 1e3, infinity, nan}) {
      const auto bytes = DefaultBucketBytes({latency, per_byte});
      EXPECT_GE(bytes, std::size_t{256} << 10);
      EXPECT_LE(bytes, std::size_t{64} << 20);
    }
  }
  EXPECT_EQ(DefaultBucketBytes({1e-9, 1e-9}), std::size_t{256} << 10);
  EXPECT_EQ(DefaultBucketBytes({1, 1e-9}), std::size_t{64} << 20);
}

}  // namespace
}  // namespace gradientflow
