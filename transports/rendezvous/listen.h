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

// Listens at "host:port", at each address that the name resolves to. It listens
// at all addresses of this host instead if the name resolves to loopback
// ("127.0.1.1 myhost" in /etc/hosts), because peers know this host by other
// addresses, or if the address is none of this host's, because it may be
// translated on the way here. It does neither if IsOfThisHostOnly(address),
// since nobody from elsewhere is to get in. Returns kFailedPrecondition if the
// port is taken.
Result<Listeners> ListenForRanks(const std::string& address);

}  // namespace gradientflow::rendezvous
