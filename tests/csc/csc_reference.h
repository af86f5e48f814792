#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A second implementation of coarse-grained sparse communication (arXiv
// 1902.06855) and Algorithm 1, for all ranks in one place, in float64 and
// without regard to speed.
namespace gradientflow::testing {

struct CscSettings {
  int ranks = 1;
  std::size_t elements = 0;
  std::size_t chunk_elements = 0;
  double sparsity = 0;
  std::uint64_t warmup_steps = 0;
  bool momentum_residual = true;  // Otherwise: kept undecayed, zero in pool.
  bool zero_kept = false;         // Zero in the pool in any case.
  double momentum = 0.9;
  double lr = 0.1;
  std::vector<std::uint8_t> always_dense = {};  // By element.
};

class CscReference {
 public:
  explicit CscReference(const CscSettings& settings);

  // gradients[rank][element].
  void Step(const std::vector<std::vector<double>>& gradients);

  // The selection of the last step, by chunk.
  const std::vector<std::uint8_t>& selection() const { return selection_; }
  // Element `i` of the pool of `rank` after the step.
  double pool(int rank, std::size_t i) const { return pool_[rank][i]; }
  double residual(int rank, std::size_t i) const { return hg_[rank][i]; }
  double weight(std::size_t i) const { return w_[i]; }

 private:
  std::size_t chunks() const { return next_.size(); }
  std::size_t ChunkOf(std::size_t i) const {
    return i / settings_.chunk_elements;
  }
  void Exchange(std::size_t i, const std::vector<std::vector<double>>& g);
  void SelectNext();

  const CscSettings settings_;
  std::uint64_t step_ = 0;
  std::vector<std::uint8_t> selection_;
  std::vector<std::uint8_t> next_;
  std::vector<double> norms_;  // By chunk, summed over the ranks.
  std::vector<std::vector<double>> pool_;
  std::vector<std::vector<double>> hg_;
  std::vector<double> hu_;
  std::vector<double> w_;
};

}  // namespace gradientflow::testing
