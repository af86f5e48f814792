#pragma once

#include "transports/endpoint.h"

// Links to other processes over TCP.
namespace gradientflow {

// Addresses look like "10.0.0.2:4321,[fd00::2]:4322", best first. In each pair,
// the higher rank connects, once for each lane. The endpoint stops listening
// when Connect() ends. Its kInvalidArgument also names a rank with a different
// number of connections.
extern const TransportKind kTcpTransport;

}  // namespace gradientflow
