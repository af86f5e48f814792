#pragma once

#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/verbs_api.h"

namespace gradientflow {

// Returns the ports that a rank with these options would use, and why. Errors
// as those of OpenRdma().
Result<std::vector<RdmaChoice>> ChooseRailsFor(const TransportOptions& options,
                                               const VerbsApi& verbs);

// Opens what links ranks by RDMA: TCP connections, over which queue pairs are
// set up. Chooses a device and a port, and pins memory. Returns the reason why
// this rank cannot, with what to do about it: kUnimplemented without the
// library, kUnavailable without a device that can be used, kResourceExhausted
// if memory may not be pinned, kInvalidArgument for wrong settings.
Result<std::unique_ptr<Endpoint>> OpenRdma(
    const TransportOptions& options,
    const std::shared_ptr<const VerbsApi>& verbs);

}  // namespace gradientflow
