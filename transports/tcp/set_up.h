#pragma once

#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/link.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Endpoint::Connect() of TCP. `listeners` are those of this rank's addresses,
// and `rails` is RailsIn() these.
// A peer whose process has ended, or that fails, ends it within a second, with
// an error that names the peer.
Result<std::vector<std::unique_ptr<Link>>> SetUpLanes(
    const TransportOptions& options, const ConnectArgs& args,
    const std::vector<Socket>& listeners, int rails);

}  // namespace gradientflow
