#pragma once

#include "transports/endpoint.h"

// Links to other processes over TCP. All that is public of this folder.
namespace gradientflow {

// Addresses read "10.0.0.2:4321,[fd00::2]:4322", best first. Of every pair the
// higher rank connects, once for each lane. Connect() listens no more when it
// ends; kInvalidArgument also names a rank with another number of connections.
extern const TransportKind kTcpTransport;

}  // namespace gradientflow
