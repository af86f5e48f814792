#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"

namespace gradientflow {

// An address of a network interface that is up, with port 0.
struct InterfaceAddress {
  std::string interface;  // For example "eth0".
  SocketAddress address;
};

Result<std::vector<InterfaceAddress>> ListInterfaces();

// Returns the addresses that peers may try, best first: IPv4 before IPv6,
// bridges of containers and virtual machines last. `names` are prefixes of
// interface names, separated by commas; a leading ^ excludes them, a leading =
// compares whole names. Loopback is included only if it is named or if there is
// nothing else. `family` is 4, 6, or 0 for both. If no address is left, returns
// kInvalidArgument with a list of all of them.
Result<std::vector<SocketAddress>> ChooseAddresses(
    const std::vector<InterfaceAddress>& all, std::string_view names,
    int family);

}  // namespace gradientflow
