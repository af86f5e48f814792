#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operations.h"

// Messages between ranks, and the plain barrier. Each throws if its arguments
// are wrong.
namespace gft {

WorkPtr Send(Operations& operations, Tensors& tensors, int peer, int tag);
WorkPtr Receive(Operations& operations, Tensors& tensors, int peer, int tag);
WorkPtr ReceiveFromAny(Operations& operations, Tensors& tensors, int tag);
WorkPtr Barrier(Operations& operations, const c10d::BarrierOptions& opts);

}  // namespace gft
