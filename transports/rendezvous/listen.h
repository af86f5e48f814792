#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow::rendezvous {

struct Listeners {
  std::vector<Socket> sockets;
  std::string note;  // What may explain that nobody comes; often empty.
};

// Listens at "host:port", at each address that the name resolves to. A name
// that resolves only to this host's loopback ("127.0.1.1 myhost" in /etc/hosts)
// is known to peers by other addresses, and an address that is none of this
// host's may be translated on the way here: then at all addresses of this host.
// But nobody else is let in where IsOfThisHostOnly(address).
// Returns kFailedPrecondition if the port is taken.
Result<Listeners> ListenForRanks(const std::string& address);

}  // namespace gradientflow::rendezvous
