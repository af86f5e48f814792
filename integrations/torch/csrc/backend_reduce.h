#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

// Operations that combine the elements of several ranks. Each is what torch's
// operation of that name is, and throws if its arguments are wrong.
namespace gft {

WorkPtr Allreduce(Operations& operations, Tensors& tensors,
                  const c10d::AllreduceOptions& opts);
// Like Allreduce() of one dense float tensor, converted to `wire` on its way.
WorkPtr AllreduceVia(Operations& operations, at::ScalarType wire,
                     const at::Tensor& tensor, const c10d::ReduceOp& op);
WorkPtr AllreduceCoalesced(Operations& operations, Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& opts);
WorkPtr Reduce(Operations& operations, Tensors& tensors,
               const c10d::ReduceOptions& opts);
WorkPtr ReduceScatter(Operations& operations, Tensors& outputs,
                      std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& opts);
WorkPtr ReduceScatterBase(Operations& operations, at::Tensor& output,
                          at::Tensor& input,
                          const c10d::ReduceScatterOptions& opts);
WorkPtr ReduceScatterCoalesced(Operations& operations, Tensors& outputs,
                               Tensors& inputs,
                               const c10d::ReduceScatterOptions& opts);

}  // namespace gft
