#pragma once

#include "transports/endpoint.h"

// Links to other processes of this host, through memory that they share.
namespace gradientflow {

// Nothing of it has a name in a file system, and all of it is freed with the
// last process, however that process dies. Processes can share memory if they
// have the same kernel, network namespace, user namespace and user. In each
// pair, the higher rank connects.
//
// open(): kResourceExhausted names the limit that was met.
// Connect(): kUnavailable names a rank that refused. An error of one rank ends
// the call on all ranks at once, with the same text, which names that rank.
extern const TransportKind kShmTransport;

}  // namespace gradientflow
