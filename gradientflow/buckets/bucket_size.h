#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

// Which bucket size (theta of lazy allreduce, arXiv 1902.06855) lets a step end
// soonest. Large buckets pay for fewer latencies; small ones start earlier,
// under the backward pass. The functions are pure: ranks that put in the same
// numbers decide alike.
namespace gradientflow {

// A theta that closes no bucket before the end.
inline constexpr std::size_t kInfiniteTheta =
    std::numeric_limits<std::size_t>::max();

// A bucket: tensors [first_tensor, end_tensor) of the pool order, which hold
// elements [begin_element, end_element) of the pool.
struct BucketBounds {
  std::size_t first_tensor = 0;
  std::size_t end_tensor = 0;
  std::size_t begin_element = 0;
  std::size_t end_element = 0;
};

// Cuts tensors of `tensor_elements`, in pool order, into buckets. A bucket
// closes with the tensor that takes it to strictly more than `theta_bytes`, at
// `element_bytes` on the wire; what is left forms the last bucket. Tensors
// without elements neither close a bucket nor make one, and at the end of the
// pool they belong to none.
std::vector<BucketBounds> StaticBuckets(
    std::size_t theta_bytes, std::span<const std::size_t> tensor_elements,
    std::size_t element_bytes);

// The backward pass of one pool.
struct BackwardProfile {
  std::vector<std::size_t> tensor_elements;  // In pool order.
  // When each tensor is written, in seconds from the start of backward. The
  // times need not ascend: a bucket waits for the last of its own tensors and
  // of those before it.
  std::vector<double> ready_seconds;
};

// What collective calls cost that run one at a time: a call of n bytes takes
// latency_seconds + n * seconds_per_byte.
struct CallCost {
  double latency_seconds = 0;
  double seconds_per_byte = 0;
};

struct BucketForecast {
  std::size_t theta_bytes = 0;
  std::size_t buckets = 0;
  // When the last bucket is done, and how much of that is after backward.
  double finish_seconds = 0;
  double exposed_seconds = 0;
};

// Predicts a step with this theta.
// REQUIRES as many times as tensors.
BucketForecast Forecast(const BackwardProfile& profile, std::size_t theta_bytes,
                        std::size_t element_bytes, const CallCost& cost);

// Returns the thetas that ChooseBucketSize() compares, ascending: 0, then 32
// per octave from 64 KiB to the size of the pool, then infinity. (Powers of two
// alone can miss the best theta by more than 5 %.)
std::vector<std::size_t> CandidateThetas(std::size_t pool_bytes);

// Returns the candidate that finishes first; among equals (to 1e-9) the one
// with the fewest buckets, then the one with the smallest theta.
BucketForecast ChooseBucketSize(const BackwardProfile& profile,
                                std::size_t element_bytes,
                                const CallCost& cost);

// Returns theta when nothing is known about backward: the latency is at most 5
// % of a bucket's transfer, and theta is within [256 KiB, 64 MiB]. Times that
// are negative or NaN count as 0.
std::size_t DefaultBucketBytes(const CallCost& cost);

}  // namespace gradientflow
