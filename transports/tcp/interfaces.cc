#include "transports/tcp/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

// Many hosts have such bridges, often with the same address. They lead to no
// other host.
constexpr std::array<std::string_view, 4> kBridges = {"docker", "br-", "virbr",
                                                      "cni"};

struct NameFilter {
  bool excludes = false;
  bool whole = false;
  std::vector<std::string_view> names;

  explicit NameFilter(std::string_view text) {
    excludes = text.starts_with('^');
    if (excludes) text.remove_prefix(1);
    whole = text.starts_with('=');
    if (whole) text.remove_prefix(1);
    while (!text.empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      if (comma > 0) names.push_back(text.substr(0, comma));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
  }

  bool Names(std::string_view interface) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return whole ? interface == name : interface.starts_with(name);
    });
  }
  // Returns whether the user asked for exactly such interfaces.
  bool selects() const { return !excludes && !names.empty(); }
  bool Allows(std::string_view interface) const {
    return names.empty() || Names(interface) != excludes;
  }
};

// Lower is better.
int Rank(const InterfaceAddress& entry) {
  const bool bridge = std::any_of(kBridges.begin(), kBridges.end(),
                                  [&](std::string_view prefix) {
                                    return entry.interface.starts_with(prefix);
                                  });
  return (entry.address.IsLoopback() ? 4 : 0) + (bridge ? 2 : 0) +
         (entry.address.family() == AF_INET6 ? 1 : 0);
}

}  // namespace

Result<std::vector<InterfaceAddress>> ListInterfaces() {
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
    all.push_back({entry->ifa_name, SocketAddress(storage, bytes)});
  }
  return all;
}

// Loopback is left out at the end, if another address remains and the user has
// not asked for loopback by name.
Result<std::vector<SocketAddress>> ChooseAddresses(
    const std::vector<InterfaceAddress>& all, std::string_view names,
    int family) {
  const NameFilter filter(names);
  std::vector<InterfaceAddress> allowed;
  bool beyond_this_host = false;
  for (const InterfaceAddress& entry : all) {
    const int version = entry.address.family() == AF_INET6 ? 6 : 4;
    if ((family != 0 && family != version) || entry.address.IsLinkLocal() ||
        !filter.Allows(entry.interface)) {
      continue;
    }
    allowed.push_back(entry);
    beyond_this_host |= !entry.address.IsLoopback();
  }
  std::stable_sort(allowed.begin(), allowed.end(),
                   [](const InterfaceAddress& a, const InterfaceAddress& b) {
                     return Rank(a) < Rank(b);
                   });
  std::vector<SocketAddress> chosen;
  for (const InterfaceAddress& entry : allowed) {
    if (entry.address.IsLoopback() && beyond_this_host && !filter.selects()) {
      continue;
    }
    chosen.push_back(entry.address);
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
