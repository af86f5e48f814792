#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {

// Listens at "host:port", at each address that the host's name has. A name
// that leads to this host's loopback only ("127.0.1.1 myhost" in /etc/hosts) is
// known to peers by other addresses: then at all of this host's.
// kFailedPrecondition if the port is taken, or the host is another.
Result<std::vector<Socket>> ListenForRanks(const std::string& address);

}  // namespace gradientflow::rendezvous
