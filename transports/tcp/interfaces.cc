#include "transports/tcp/interfaces.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "gradientflow/base/str_cat.h"
#include "transports/name_filter.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

// Many hosts have such bridges, often with the same address. They lead to no
// other host. Other bridges may have the host's network card as a port.
constexpr std::array<std::string_view, 5> kContainerBridges = {
    "docker", "br-", "virbr", "cni", "lxc"};
// Drivers of interfaces that lead to a container, or through a tunnel.
constexpr std::array<std::string_view, 10> kVirtualDrivers = {
    "veth", "tun",    "wireguard", "dummy", "ipip",
    "gre",  "ip6tnl", "sit",       "vxlan", "geneve"};

// IFF_LOWER_UP of <linux/if.h>, which cannot be included with <net/if.h>.
// Unlike IFF_RUNNING, it does not lag behind the driver.
constexpr unsigned kLowerUp = 1U << 16;

// A virtual interface promises less than one of unknown rate.
constexpr int kVirtualRate = 3;
constexpr int kLinkLocalRate = 2;
constexpr int kNoCarrierRate = 1;

// Asks the driver of interface `name`; false if it does not answer. `request`
// is one of ethtool's structures, with its command.
bool AskDriver(const Socket& socket, const char* name, void* request) {
  ifreq ask = {};
  std::strncpy(ask.ifr_name, name, IFNAMSIZ - 1);
  ask.ifr_data = static_cast<char*>(request);
  return ::ioctl(socket.fd(), SIOCETHTOOL, &ask) == 0;
}

int RateOfInterface(const Socket& socket, const char* name) {
  ethtool_cmd settings = {};
  settings.cmd = ETHTOOL_GSET;
  if (!AskDriver(socket, name, &settings)) return 0;
  const std::uint32_t mbps = ethtool_cmd_speed(&settings);
  // The driver says -1 if it does not know.
  return mbps > 10'000'000 ? 0 : static_cast<int>(mbps);
}

Reach ReachOf(const Socket& socket, const ifaddrs& entry) {
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return Reach::kLoopback;
  const std::string_view name = entry.ifa_name;
  for (const std::string_view prefix : kContainerBridges) {
    if (name.starts_with(prefix)) return Reach::kVirtual;
  }
  ethtool_drvinfo driver = {};
  driver.cmd = ETHTOOL_GDRVINFO;
  const bool known = AskDriver(socket, entry.ifa_name, &driver);
  driver.driver[sizeof(driver.driver) - 1] = '\0';
  const bool is_virtual =
      known &&
      std::find(kVirtualDrivers.begin(), kVirtualDrivers.end(),
                std::string_view(driver.driver)) != kVirtualDrivers.end();
  // Tunnels that have no driver to ask are point to point.
  return is_virtual || (entry.ifa_flags & IFF_POINTOPOINT) != 0
             ? Reach::kVirtual
             : Reach::kNetwork;
}

}  // namespace

int RateOf(const InterfaceAddress& entry) {
  if (entry.reach == Reach::kLoopback) return 0;
  if (!entry.carrier) return kNoCarrierRate;
  if (entry.address.IsLinkLocal()) return kLinkLocalRate;
  if (entry.reach == Reach::kVirtual) return kVirtualRate;
  return entry.mbps > 0 ? std::max(entry.mbps, kLeastRate) : kUnknownRate;
}

Result<std::vector<InterfaceAddress>> ListInterfaces() {
  const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) {
    return SocketError(StatusCode::kUnavailable, "getifaddrs", errno);
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found,
                                                           &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = found; entry != nullptr;
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes =
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    sockaddr_storage storage = {};
    std::memcpy(&storage, entry->ifa_addr, bytes);
    all.push_back({entry->ifa_name, SocketAddress(storage, bytes),
                   ReachOf(socket, *entry), (entry->ifa_flags & kLowerUp) != 0,
                   RateOfInterface(socket, entry->ifa_name)});
  }
  return all;
}

// Loopback is left out at the end, if another address remains and the user has
// not asked for loopback by name.
Result<std::vector<RatedAddress>> ChooseAddresses(
    const std::vector<InterfaceAddress>& all, std::string_view names,
    int family) {
  const NameFilter filter(names);
  std::vector<RatedAddress> chosen;
  for (const InterfaceAddress& entry : all) {
    const bool v6 = entry.address.family() == AF_INET6;
    if ((family == 0 || family == (v6 ? 6 : 4)) &&
        !(v6 && entry.address.IsLinkLocal()) &&
        filter.Allows(entry.interface)) {
      chosen.push_back({entry.address, RateOf(entry)});
    }
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const RatedAddress& a, const RatedAddress& b) {
                     return a.mbps != b.mbps
                                ? a.mbps > b.mbps
                                : a.address.family() == AF_INET &&
                                      b.address.family() != AF_INET;
                   });
  if (!filter.selects() && !chosen.empty() &&
      !chosen.front().address.IsLoopback()) {
    std::erase_if(chosen, [](const RatedAddress& rated) {
      return rated.address.IsLoopback();
    });
  }
  if (!chosen.empty()) return chosen;
  std::string there_are;
  for (const InterfaceAddress& entry : all) {
    there_are += StrCat(" ", entry.interface, "=", entry.address.ToString());
  }
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("no network interface left: expected names \"", names, "\"",
             family == 0 ? "" : StrCat(" and IPv", family),
             ", there are:", there_are.empty() ? " none" : there_are));
}

}  // namespace gradientflow
