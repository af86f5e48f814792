#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

// Which bucket size (theta of lazy allreduce, arXiv 1902.06855) lets a step end
// soonest: large buckets pay fewer latencies, small ones start earlier under
// the backward pass. Pure functions of sizes and times: ranks that put in the
// same numbers decide alike.
namespace gradientflow {

// Never closes a bucket before the end.
inline constexpr std::size_t kInfiniteTheta =
    std::numeric_limits<std::size_t>::max();

// A bucket: tensors [first_tensor, end_tensor) of the pool order, which hold
// the pool's elements [begin_element, end_element).
struct BucketBounds {
  std::size_t first_tensor = 0;
  std::size_t end_tensor = 0;
  std::size_t begin_element = 0;
  std::size_t end_element = 0;
};

// Cuts tensors of `tensor_elements` (pool order) into buckets. A bucket closes
// with the tensor that takes it to strictly more than `theta_bytes`, at
// `element_bytes` on the wire; what is left forms the last. Tensors without
// elements never close a bucket, nor make one; at the end they are in none.
std::vector<BucketBounds> StaticBuckets(
    std::size_t theta_bytes, std::span<const std::size_t> tensor_elements,
    std::size_t element_bytes);

// One pool's backward pass.
struct BackwardProfile {
  std::vector<std::size_t> tensor_elements;  // In pool order.
  // When each tensor is written, in seconds from the start of backward. Need
  // not ascend: a bucket waits for the last of its tensors and those before.
  std::vector<double> ready_seconds;
};

// A collective of n bytes takes latency_seconds + n * seconds_per_byte; one
// runs at a time.
struct ChannelModel {
  double latency_seconds = 0;
  double seconds_per_byte = 0;
};

struct BucketForecast {
  std::size_t theta_bytes = 0;
  std::size_t buckets = 0;
  // When the last bucket is done, and how much of that comes after backward.
  double finish_seconds = 0;
  double exposed_seconds = 0;
};

// What a step with this theta would take.
// REQUIRES as many times as tensors.
BucketForecast Forecast(const BackwardProfile& profile, std::size_t theta_bytes,
                        std::size_t element_bytes, const ChannelModel& channel);

// The thetas that ChooseBucketSize compares: 0, from 64 KiB in 32 steps per
// octave up to the pool's size, infinity. Ascending. (With powers of two alone
// the best can be missed by more than 5 %.)
std::vector<std::size_t> CandidateThetas(std::size_t pool_bytes);

// The candidate that finishes first; among equals (to 1e-9) the one with the
// fewest buckets, then the smallest.
BucketForecast ChooseBucketSize(const BackwardProfile& profile,
                                std::size_t element_bytes,
                                const ChannelModel& channel);

// Theta when nothing is known about backward: the latency is at most 5 % of a
// bucket's transfer, within [256 KiB, 64 MiB]. Times that are negative or no
// numbers count as 0.
std::size_t DefaultBucketBytes(const ChannelModel& channel);

}  // namespace gradientflow
