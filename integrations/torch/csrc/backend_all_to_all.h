#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

// Every rank sends something to every rank: of one tensor or, AllToAll(), a
// tensor to each. Throws if the arguments are wrong.
namespace gft {

WorkPtr AllToAllSingle(Operations& operations, at::Tensor& output,
                       at::Tensor& input, std::vector<int64_t>& output_splits,
                       std::vector<int64_t>& input_splits,
                       const c10d::AllToAllOptions& opts);
WorkPtr AllToAll(Operations& operations, Tensors& outputs, Tensors& inputs,
                 const c10d::AllToAllOptions& opts);

}  // namespace gft
