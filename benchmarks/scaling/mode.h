#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gradientflow/config/options.h"

namespace gradientflow::benchmarks {

// A rung of the paper's ladder: each adds one technique to the one before.
struct Mode {
  std::string name;               // For the command line.
  std::string label;              // For tables.
  DType dtype = DType::kFloat32;  // Of pool and wire: mixed-precision
                                  // backward leaves FP16 gradients.
  bool overlap = false;
  std::size_t bucket_bytes = 0;  // theta.
  float sparsity = 0;

  // Fills in what the mode decides.
  void Apply(Options& options) const;
};

// fp32, fp16, overlap, lazy, csc.
std::vector<Mode> Modes();
std::optional<Mode> FindMode(const std::string& name);

// "lazy" as it is, with the bucket size that chooses itself, and with each of
// a sweep of fixed ones.
std::vector<Mode> SweepModes();

}  // namespace gradientflow::benchmarks
