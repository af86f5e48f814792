#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

namespace gft {

// The sum of sparse COO tensors.
WorkPtr AllreduceSparse(Operations& operations, Tensors& tensors,
                        const c10d::AllreduceOptions& opts);

}  // namespace gft
