#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/socket.h"

// What a rank knows of how to connect to a peer.
namespace gradientflow {

// The number of lanes between two ranks with that many rails: control messages
// have a lane of their own, which no data holds up, and each rail has a data
// lane at least, unless there is to be no data lane.
int LanesBetween(const TransportOptions& options, int rails);

// Reads the address that `peer` has published. kInvalidArgument names the peer.
Result<std::vector<RatedAddress>> PublishedBy(int peer,
                                              const std::string& address);

// The published addresses that this rank may use, best way first; may be empty.
std::vector<RatedAddress> WaysTo(
    std::vector<RatedAddress> published, const TransportOptions& options,
    const std::vector<InterfaceAddress>& interfaces);

// Returns whether the addresses are those at which this rank listens, but for
// the ports.
bool IsOnThisHost(const std::vector<RatedAddress>& addresses,
                  const std::vector<Socket>& listeners);

}  // namespace gradientflow
