#pragma once

#include <memory>

#include "gradientflow/communicator/communicator.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/device/device.h"
#include "transports/inproc/create.h"

namespace gradientflow {

// A communicator whose ranks are threads of this process, one per rank of
// `group`: for tests, and for several devices in one process. options.rank says
// which; size is the group's. Blocks until all ranks have called. `device`:
// where buffers may be besides the host; null: as the options say.
Result<std::shared_ptr<Communicator>> OpenInProcess(
    const std::shared_ptr<InprocGroup>& group, const Options& options,
    std::shared_ptr<Device> device = nullptr);

// A communicator of ranks that are joined already, however that came about.
Result<std::shared_ptr<Communicator>> OpenOver(
    Transport transport, const Options& options,
    std::shared_ptr<Device> device = nullptr);

}  // namespace gradientflow
