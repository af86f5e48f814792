#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {

// Listens at "host:port", at each address that the name resolves to. A name
// that resolves only to this host's loopback ("127.0.1.1 myhost" in /etc/hosts)
// is known to peers by other addresses, so then at all addresses of this host.
// Returns kFailedPrecondition if the port is taken or the address is not this
// host's.
Result<std::vector<Socket>> ListenForRanks(const std::string& address);

}  // namespace gradientflow::rendezvous
