#include "transports/tcp/ways.h"

#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/tcp_link.h"

namespace gradientflow {

int LanesBetween(const TransportOptions& options, int rails) {
  if (options.connections == 0) return 1;
  return std::min(1 + std::max(options.connections, rails), kMaxTcpLanes);
}

Result<std::vector<RatedAddress>> PublishedBy(int peer,
                                              const std::string& address) {
  Result<std::vector<RatedAddress>> published = SplitRated(address);
  if (published.ok()) return published;
  return Status(
      published.status().code(),
      StrCat("address of rank ", peer, ": ", published.status().message()));
}

std::vector<RatedAddress> WaysTo(
    std::vector<RatedAddress> published, const TransportOptions& options,
    const std::vector<InterfaceAddress>& interfaces) {
  std::erase_if(published, [&](const RatedAddress& rated) {
    const int version = rated.address.family() == AF_INET6 ? 6 : 4;
    return options.ip_version != 0 && options.ip_version != version;
  });
  RateRoutes(interfaces, &published);
  return published;
}

bool IsOnThisHost(const std::vector<RatedAddress>& addresses,
                  const std::vector<Socket>& listeners) {
  const auto without_port = [](SocketAddress address) {
    address.SetPort(0);
    return address.ToString();
  };
  std::multiset<std::string> here, there;
  for (const RatedAddress& rated : addresses) {
    there.insert(without_port(rated.address));
  }
  for (const Socket& listener : listeners) {
    here.insert(without_port(LocalAddress(listener)));
  }
  return here == there;
}

}  // namespace gradientflow
