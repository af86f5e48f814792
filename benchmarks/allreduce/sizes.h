#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// min, min * factor, ... up to max, rounded down to whole elements and
// without repetitions. kInvalidArgument if there are none.
Result<std::vector<std::size_t>> Sizes(std::size_t min_bytes,
                                       std::size_t max_bytes, double factor,
                                       std::size_t element_bytes);

// So many that a batch takes some milliseconds: few large ones, many small.
int IterationsFor(std::size_t bytes);

}  // namespace gradientflow::benchmarks
