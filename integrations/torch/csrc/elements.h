#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace gft {

// A tensor's elements, as the library counts them.
struct Elements {
  int32_t dtype = 0;
  size_t count = 0;
  int32_t op = 0;
};

// The elements for an operation that computes. Complex tensors are pairs of
// reals, for sums and means; bool is 0 and 1, so that a sum is "any" and a
// product is "all". Throws if the type and the operation do not go together;
// the text starts with `what`.
Elements ForReduce(const char* what, const at::Tensor& tensor,
                   const c10d::ReduceOp& op);
// What takes part in such an operation: `tensor`, or for PREMUL_SUM its product
// with this rank's factor.
at::Tensor Premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op);
// The elements for an operation that only moves them. Types that the library
// does not know become bytes.
Elements ForMove(const at::Tensor& tensor);

// "SUM", "AVG", ...
std::string NameOf(const c10d::ReduceOp& op);

}  // namespace gft
