#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "session.h"

namespace gft {

// Gives all ranks the values of rank 0, in few messages. All ranks pass the
// same number of tensors with the same types and shapes, which may be any, on
// the host or on the session's GPU. To be called without the GIL. Throws.
void BroadcastTensors(const Session& session,
                      const std::vector<at::Tensor>& tensors);

}  // namespace gft
