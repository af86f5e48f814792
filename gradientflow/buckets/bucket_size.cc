#include "gradientflow/buckets/bucket_size.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace gradientflow {
namespace {

// kSmallestTheta and kStepsPerOctave span the candidates; times within a factor
// of 1 + kEqual count as equal. kLeastDefault, kMostDefault and kLatencyShare
// belong to DefaultBucketBytes().
constexpr std::size_t kSmallestTheta = 64 << 10;
constexpr std::size_t kStepsPerOctave = 32;
constexpr double kEqual = 1e-9;

constexpr std::size_t kLeastDefault = 256 << 10;
constexpr std::size_t kMostDefault = 64 << 20;
constexpr double kLatencyShare = 0.05;

}  // namespace

std::vector<BucketBounds> StaticBuckets(
    std::size_t theta_bytes, std::span<const std::size_t> tensor_elements,
    std::size_t element_bytes) {
  assert(element_bytes > 0);
  std::vector<BucketBounds> buckets;
  BucketBounds open;
  const auto close = [&] {
    buckets.push_back(open);
    open.first_tensor = open.end_tensor;
    open.begin_element = open.end_element;
  };
  for (std::size_t elements : tensor_elements) {
    ++open.end_tensor;
    open.end_element += elements;
    const std::size_t waiting = open.end_element - open.begin_element;
    // The same as waiting * element_bytes > theta_bytes, without overflow.
    if (elements > 0 && waiting > theta_bytes / element_bytes) close();
  }
  if (open.end_element > open.begin_element) close();
  return buckets;
}

// Plays the buckets against the clock: each starts when its tensors, and all
// tensors before them, are written and the bucket before it has ended.
BucketForecast Forecast(const BackwardProfile& profile, std::size_t theta_bytes,
                        std::size_t element_bytes, const CallCost& cost) {
  assert(profile.tensor_elements.size() == profile.ready_seconds.size());
  const auto buckets =
      StaticBuckets(theta_bytes, profile.tensor_elements, element_bytes);
  double backward_end = 0;
  for (double ready : profile.ready_seconds) {
    backward_end = std::max(backward_end, ready);
  }
  double prefix_ready = 0;
  double wire_free = 0;
  for (const BucketBounds& bucket : buckets) {
    for (std::size_t t = bucket.first_tensor; t < bucket.end_tensor; ++t) {
      prefix_ready = std::max(prefix_ready, profile.ready_seconds[t]);
    }
    const std::size_t elements = bucket.end_element - bucket.begin_element;
    const double bytes =
        static_cast<double>(elements) * static_cast<double>(element_bytes);
    wire_free = std::max(wire_free, prefix_ready) + cost.latency_seconds +
                bytes * cost.seconds_per_byte;
  }
  const double finish = std::max(wire_free, backward_end);
  return {theta_bytes, buckets.size(), finish, finish - backward_end};
}

std::vector<std::size_t> CandidateThetas(std::size_t pool_bytes) {
  std::vector<std::size_t> thetas{0};
  for (std::size_t octave = kSmallestTheta; octave <= pool_bytes; octave *= 2) {
    for (std::size_t step = 0; step < kStepsPerOctave; ++step) {
      const std::size_t theta = octave + octave / kStepsPerOctave * step;
      if (theta <= pool_bytes) thetas.push_back(theta);
    }
    if (octave > pool_bytes / 2) break;
  }
  thetas.push_back(kInfiniteTheta);
  return thetas;
}

// Tries all candidates. Among those that are as fast as the fastest, fewer
// buckets mean less work for each step.
BucketForecast ChooseBucketSize(const BackwardProfile& profile,
                                std::size_t element_bytes,
                                const CallCost& cost) {
  const std::size_t elements =
      std::accumulate(profile.tensor_elements.begin(),
                      profile.tensor_elements.end(), std::size_t{0});
  std::vector<BucketForecast> forecasts;
  for (std::size_t theta : CandidateThetas(elements * element_bytes)) {
    forecasts.push_back(Forecast(profile, theta, element_bytes, cost));
  }
  const auto fastest = std::min_element(
      forecasts.begin(), forecasts.end(), [](const auto& a, const auto& b) {
        return a.finish_seconds < b.finish_seconds;
      });
  const double bound = fastest->finish_seconds * (1 + kEqual);
  BucketForecast best = *fastest;
  for (const BucketForecast& forecast : forecasts) {
    if (forecast.finish_seconds > bound) continue;
    if (forecast.buckets < best.buckets ||
        (forecast.buckets == best.buckets &&
         forecast.theta_bytes < best.theta_bytes)) {
      best = forecast;
    }
  }
  return best;
}

// Solves latency = kLatencyShare * bytes * per_byte for the bytes.
std::size_t DefaultBucketBytes(const CallCost& cost) {
  // Comparisons that are false for a NaN.
  const double latency = cost.latency_seconds > 0 ? cost.latency_seconds : 0;
  const double per_byte = cost.seconds_per_byte > 0 ? cost.seconds_per_byte : 0;
  if (latency == 0) return kLeastDefault;
  const double wanted = latency / kLatencyShare;  // Seconds of transfer.
  if (wanted >= static_cast<double>(kMostDefault) * per_byte) {
    return kMostDefault;
  }
  return std::max(kLeastDefault,
                  static_cast<std::size_t>(std::ceil(wanted / per_byte)));
}

}  // namespace gradientflow
