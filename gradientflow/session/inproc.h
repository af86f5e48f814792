#pragma once

#include <memory>
#include <vector>

#include "gradientflow/device/device.h"
#include "gradientflow/session.h"
#include "transports/inproc/create.h"

namespace gradientflow {

// A session whose ranks are threads of this process, one per rank of `group`:
// for tests, and for several models or devices in one process.
// options.rank says which; size is the group's. Blocks until all ranks have
// called. `device`: where the gradients are to be; null: as the options say.
Result<std::unique_ptr<Session>> OpenInProcess(
    const std::shared_ptr<InprocGroup>& group, const Options& options,
    const std::vector<TensorSpec>& tensors,
    std::shared_ptr<Device> device = nullptr);

}  // namespace gradientflow
