#include "transports/tcp/rails.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace gradientflow {
namespace {

// The kernel takes no more than this beyond what is under way, so that the rest
// waits here, where it can still be divided.
constexpr int kUnsentBytes = 128 << 10;
// A lane must have carried this much before it is judged.
constexpr std::uint64_t kEnoughBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kFarTooSlow = 4;

// A lane is too slow when it has been found so this often in succession, as a
// peer that does not read for a moment looks like a slow network.
constexpr int kStrikes = 3;

RailRate Measure(const Socket& lane) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (::getsockopt(lane.fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    return {};
  }
  return {info.tcpi_bytes_acked, info.tcpi_delivery_rate,
          info.tcpi_delivery_rate_app_limited == 0};
}

bool SameNetwork(const Socket& a, const Socket& b) {
  const auto host = [](SocketAddress address) {
    address.SetPort(0);
    return address.ToString();
  };
  return host(LocalAddress(a)) == host(LocalAddress(b)) &&
         host(PeerAddress(a)) == host(PeerAddress(b));
}

}  // namespace

void SlowRails::Look(const std::vector<RailRate>& rates) {
  std::uint64_t best = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (slow_[i]) continue;
    if (rates[i].bytes < kEnoughBytes) return;
    best = std::max(best, rates[i].bytes_per_second);
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (slow_[i]) continue;
    const bool slow =
        rates[i].full && rates[i].bytes_per_second * kFarTooSlow < best;
    strikes_[i] = slow ? strikes_[i] + 1 : 0;
    slow_[i] = strikes_[i] == kStrikes;
  }
}

Rails::Rails(std::vector<const Socket*> lanes)
    : lanes_(std::move(lanes)), slow_(lanes_.size()) {
  several_ = std::any_of(lanes_.begin(), lanes_.end(), [&](const Socket* lane) {
    return !SameNetwork(*lane, *lanes_.front());
  });
  if (!several_) return;
  for (const Socket* lane : lanes_) {
    ::setsockopt(lane->fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
                 sizeof(kUnsentBytes));
  }
}

void Rails::DropSlow() {
  std::vector<RailRate> rates;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    rates.push_back(slow_[i] ? RailRate() : Measure(*lanes_[i]));
  }
  slow_.Look(rates);
}

}  // namespace gradientflow
