#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"

namespace gradientflow {

// One address of one network interface that is up; port 0.
struct InterfaceAddress {
  std::string interface;  // "eth0".
  SocketAddress address;
};

Result<std::vector<InterfaceAddress>> ListInterfaces();

// Those that peers may try, best first: IPv4 before IPv6, bridges of
// containers and virtual machines last. `names`: prefixes of interface names,
// separated by commas; a leading ^ excludes them, a leading = asks for the full
// name. Loopback only if named, or if there is nothing else. `family`: 0 for
// both, 4 or 6. kInvalidArgument tells what there is if nothing is left.
Result<std::vector<SocketAddress>> ChooseAddresses(
    const std::vector<InterfaceAddress>& all, std::string_view names,
    int family);

}  // namespace gradientflow
