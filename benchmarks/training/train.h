#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/training/digits.h"
#include "benchmarks/training/report.h"
#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow::benchmarks {

// How gradients travel.
struct Exchange {
  std::string name;
  DType wire = DType::kFloat32;
  float sparsity = 0;
  float loss_scale = 1;
};

// The same for every Exchange.
struct Recipe {
  std::vector<std::size_t> hidden = {128, 128};
  std::size_t epochs = 30;
  std::size_t batch = 64;  // Of all ranks together.
  float lr = 0.1F;         // Falls linearly to 0.
  float momentum = 0.9F;
  float weight_decay = 0;
  double warmup = 0.05;  // Share of the steps in which sparsity rises.
  std::size_t chunk_elements = 256;
};

// One rank's part: trains from `seed` on every size-th sample of each batch
// and tests on split.test. Blocks until done. `options` say who and where.
Result<TrainingResult> Train(Options options, const Exchange& exchange,
                             const Recipe& recipe, const Split& split,
                             std::uint64_t seed);

}  // namespace gradientflow::benchmarks
