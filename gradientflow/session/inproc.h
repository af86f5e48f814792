#pragma once

#include <memory>
#include <vector>

#include "gradientflow/session.h"
#include "transports/inproc/create.h"

namespace gradientflow {

// A session whose ranks are threads of this process, one per rank of `group`:
// for tests, and for several models or devices in one process.
// options.rank says which; size is the group's. Blocks until all ranks have
// called.
Result<std::unique_ptr<Session>> OpenInProcess(
    const std::shared_ptr<InprocGroup>& group, const Options& options,
    const std::vector<TensorSpec>& tensors);

}  // namespace gradientflow
