#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "benchmarks/scaling/gradients.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// Follows a sample of the pool's elements through the steps in float64, for all
// ranks, and computes what the group's gradients must be. It knows nothing of
// buckets, algorithms or fabrics; it is told which chunks were sent.
class Oracle {
 public:
  struct Pool {
    std::size_t elements = 0;
    DType dtype = DType::kFloat32;
    int ranks = 1;
    std::size_t chunk_elements = 0;
    float momentum = 0;  // The decay of what is kept back.
    // What is kept back is in the pool, and is rounded to its type.
    bool accumulate = false;
  };

  Oracle(const Gradients& gradients, const Pool& pool);

  // Checks the pool after `step`: the mean over the ranks of gradients and
  // residuals in every chunk that was sent. `selection` has one byte per chunk,
  // or is empty if all were sent. kDataLoss names the first wrong element.
  // Steps must be passed in order, from 0, without gaps.
  Status Check(std::uint64_t step, ConstBufferView pool,
               const std::vector<std::uint8_t>& selection);

  std::size_t samples() const { return elements_.size(); }
  // A hash of all samples sent so far, which is the same on every rank.
  std::uint64_t hash() const { return hash_; }

 private:
  const Gradients& gradients_;
  Pool pool_;
  std::vector<std::size_t> elements_;
  std::vector<double> residuals_;  // [sample][rank].
  // The most that the residuals hold in addition: the errors of rounding
  // gradients that were sent to the pool's type.
  std::vector<double> left_;  // [sample][rank].
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace gradientflow::benchmarks
