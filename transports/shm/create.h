#pragma once

#include "transports/endpoint.h"

// Links to other processes of this host, through memory that they share. All
// that is public of this folder.
namespace gradientflow {

// Nothing of it has a name in a file system; all goes with the last process,
// however that dies. open(): kResourceExhausted names the limit met. Processes
// of the same kernel, network namespace, user namespace and user can share. Of
// every pair the higher rank connects. Connect(): kUnavailable names a rank
// that refused; any error of one rank is the same on all of them, at once, and
// names the rank that has it.
extern const TransportKind kShmTransport;

}  // namespace gradientflow
