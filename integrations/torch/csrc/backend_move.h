#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

// Operations that move elements between ranks. Each is what torch's operation
// of that name is, and throws if its arguments are wrong.
namespace gft {

WorkPtr Broadcast(Operations& operations, Tensors& tensors,
                  const c10d::BroadcastOptions& opts);
WorkPtr Allgather(Operations& operations, std::vector<Tensors>& outputs,
                  Tensors& inputs, const c10d::AllgatherOptions& opts);
WorkPtr AllgatherBase(Operations& operations, at::Tensor& output,
                      at::Tensor& input, const c10d::AllgatherOptions& opts);
WorkPtr AllgatherCoalesced(Operations& operations,
                           std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& opts);
WorkPtr AllgatherIntoCoalesced(Operations& operations, Tensors& outputs,
                               Tensors& inputs,
                               const c10d::AllgatherOptions& opts);
WorkPtr Gather(Operations& operations, std::vector<Tensors>& outputs,
               Tensors& inputs, const c10d::GatherOptions& opts);
WorkPtr GatherInto(Operations& operations, at::Tensor& output,
                   at::Tensor& input, const c10d::GatherOptions& opts);
WorkPtr Scatter(Operations& operations, Tensors& outputs,
                std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts);

}  // namespace gft
