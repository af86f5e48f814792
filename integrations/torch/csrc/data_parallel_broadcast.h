#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "session.h"

namespace gft {

// Gives all ranks rank 0's values, in few messages. The same number, types and
// shapes on all ranks, any of them, on the host or the session's GPU; not with
// the GIL. Throws.
void BroadcastTensors(const Session& session,
                      const std::vector<at::Tensor>& tensors);

}  // namespace gft
