#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"

namespace gradientflow {

// What an interface is good for, from best to worst.
enum class Reach {
  kNetwork,   // A network card, or what stands for one: a bond, a VLAN, a
              // bridge.
  kVirtual,   // A tunnel, one end of a pair, or a bridge of container tools.
  kLoopback,  // This host only.
};

// An address of a network interface that is up, with port 0.
struct InterfaceAddress {
  std::string interface;  // For example "eth0".
  SocketAddress address;
  Reach reach = Reach::kNetwork;
  bool carrier = true;  // The cable is plugged in.
  int mbps = 0;         // Megabits per second; 0: the driver does not say.
};

// An address and about how many megabits per second it is good for. Numbers
// below kLeastRate are no rates: they put interfaces of unknown rate in an
// order.
struct RatedAddress {
  SocketAddress address;
  int mbps = 0;
};
inline constexpr int kLeastRate = 10;
// Drivers of virtual machines often do not tell the rate.
inline constexpr int kUnknownRate = 9;

int RateOf(const InterfaceAddress& entry);

// Interfaces of this process's network namespace.
Result<std::vector<InterfaceAddress>> ListInterfaces();

// Returns the addresses that peers may try, with port 0, best first: by rate,
// and IPv4 before IPv6. Tunnels, pairs, container tools' bridges, interfaces
// without a carrier and link-local addresses come last. `names` are prefixes of
// interface names, separated by commas; a leading ^ excludes them, a leading =
// compares whole names. Loopback is included only if it is named or if there is
// nothing else. IPv6's link-local addresses mean nothing to other hosts, and
// are left out. `family` is 4, 6, or 0 for both. If no address is left, returns
// kInvalidArgument with a list of all of them.
Result<std::vector<RatedAddress>> ChooseAddresses(
    const std::vector<InterfaceAddress>& all, std::string_view names,
    int family);

}  // namespace gradientflow
