#pragma once

#include <memory>

#include "gradientflow/communicator/communicator.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/device/device.h"
#include "transports/inproc/create.h"

namespace gradientflow {

// Opens a communicator whose ranks are threads of this process, one for each
// rank of `group`; for tests, and for several devices in one process.
// options.rank is this thread's rank, and the size is that of the group. Blocks
// until all ranks have called. `device` is where buffers may be besides the
// host; if it is null, the options decide.
Result<std::shared_ptr<Communicator>> OpenInProcess(
    const std::shared_ptr<InprocGroup>& group, const Options& options,
    std::shared_ptr<Device> device = nullptr);

// Opens a communicator of ranks that have been joined already, in any way.
Result<std::shared_ptr<Communicator>> OpenOver(
    Transport transport, const Options& options,
    std::shared_ptr<Device> device = nullptr);

}  // namespace gradientflow
