#include "transports/tcp/routes.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

// Connecting a datagram socket only asks the kernel for the route. Returns the
// address that it would send from.
std::optional<SocketAddress> SourceFor(const SocketAddress& to) {
  const Socket socket(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.fd(), to.data(), to.bytes()) != 0) {
    return std::nullopt;
  }
  SocketAddress from = LocalAddress(socket);
  from.SetPort(0);
  return from;
}

int RateOfRoute(const std::vector<InterfaceAddress>& interfaces,
                const SocketAddress& to) {
  const std::optional<SocketAddress> from = SourceFor(to);
  if (!from) return 0;
  const std::string text = from->ToString();
  for (const InterfaceAddress& entry : interfaces) {
    if (entry.address.ToString() == text) return RateOf(entry);
  }
  return kUnknownRate;
}

}  // namespace

std::string JoinRated(const std::vector<RatedAddress>& addresses) {
  std::string text;
  for (const RatedAddress& rated : addresses) {
    text += StrCat(text.empty() ? "" : ",", rated.address.ToString(), "@",
                   rated.mbps);
  }
  return text;
}

Result<std::vector<RatedAddress>> SplitRated(std::string_view text) {
  std::vector<RatedAddress> addresses;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = text.substr(0, comma);
    const std::size_t at = part.find('@');
    const std::optional<SocketAddress> address =
        SocketAddress::Parse(part.substr(0, at));
    int mbps = kUnknownRate;
    bool bad = !address;
    if (at != std::string_view::npos) {
      const char* const last = part.data() + part.size();
      const auto [end, error] = std::from_chars(&part[at] + 1, last, mbps);
      bad |= error != std::errc() || end != last || mbps < 0;
    }
    if (bad) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("expected ip:port or [ipv6]:port, and perhaps "
                           "@mbps, seen \"",
                           part, "\""));
    }
    addresses.push_back({*address, mbps});
    if (more) text.remove_prefix(comma + 1);
  }
  return addresses;
}

void RateRoutes(const std::vector<InterfaceAddress>& interfaces,
                std::vector<RatedAddress>* peer) {
  if (peer->size() < 2) return;
  for (RatedAddress& rated : *peer) {
    rated.mbps = std::min(rated.mbps, RateOfRoute(interfaces, rated.address));
  }
  std::stable_sort(peer->begin(), peer->end(),
                   [](const RatedAddress& a, const RatedAddress& b) {
                     return a.mbps > b.mbps;
                   });
}

namespace {

// An interface may have an address of each family, so addresses of another
// family than the best are no rails of their own.
bool IsRail(const RatedAddress& best, const RatedAddress& rated) {
  const int least = best.mbps < kLeastRate ? best.mbps : best.mbps / 4 + 1;
  return rated.address.family() == best.address.family() && rated.mbps >= least;
}

}  // namespace

int RailsIn(const std::vector<RatedAddress>& addresses) {
  return static_cast<int>(std::count_if(
      addresses.begin(), addresses.end(), [&](const RatedAddress& rated) {
        return IsRail(addresses.front(), rated);
      }));
}

int LineRateOf(const std::vector<RatedAddress>& addresses) {
  if (addresses.front().mbps < kLeastRate) return 0;
  int sum = 0;
  for (const RatedAddress& rated : addresses) {
    if (IsRail(addresses.front(), rated)) sum += rated.mbps;
  }
  return sum;
}

std::vector<SocketAddress> RouteOfLane(
    const std::vector<RatedAddress>& addresses, int lane) {
  std::vector<SocketAddress> order;
  order.reserve(addresses.size());
  for (const RatedAddress& rated : addresses) order.push_back(rated.address);
  int rail = std::max(lane - 1, 0) % RailsIn(addresses);
  // Counts down the rails, which need not be neighbours.
  const RatedAddress& best = addresses.front();
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].address.family() != best.address.family()) continue;
    if (rail-- > 0) continue;
    std::rotate(order.begin(), order.begin() + static_cast<long>(i),
                order.begin() + static_cast<long>(i) + 1);
    break;
  }
  return order;
}

}  // namespace gradientflow
