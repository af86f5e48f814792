// What a TcpLink costs beside the system calls it cannot do without: the same
// bytes between two processes over loopback, through links and through a bare
// loop of send() and recv(), alternating. Prints medians and their ratio.

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/poller.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tcp_link.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

constexpr std::size_t kTotalBytes = std::size_t{128} << 20;
constexpr std::size_t kMessageBytes = std::size_t{256} << 10;
constexpr std::size_t kSmallBytes = 4096;
constexpr int kRounds = 9;
constexpr int kRoundTrips = 2000;

using Sockets = std::vector<Socket>;

bool WaitFor(const Socket& socket, short events) {
  pollfd ready = {socket.fd(), events, 0};
  return ::poll(&ready, 1, 5000) == 1;
}

std::optional<std::pair<Sockets, Sockets>> Connect(int lanes) {
  Sockets one, other;
  Result<Socket> listener =
      ListenOn(SocketAddress::Parse("127.0.0.1:0").value(), 0);
  if (!listener.ok()) return std::nullopt;
  for (int i = 0; i < lanes; ++i) {
    Result<Socket> out = StartConnect(LocalAddress(listener.value()), 0);
    if (!out.ok() || !WaitFor(listener.value(), POLLIN)) return std::nullopt;
    Result<Socket> in = Accept(listener.value());
    if (!in.ok() || !WaitFor(out.value(), POLLOUT)) return std::nullopt;
    one.push_back(std::move(out).value());
    other.push_back(std::move(in).value());
    if (!PrepareConnection(one.back()).ok()) return std::nullopt;
    if (!PrepareConnection(other.back()).ok()) return std::nullopt;
  }
  return std::pair(std::move(one), std::move(other));
}

// Both ways at once, `bytes` each, the connections taking turns.
bool BareExchange(const Sockets& sockets, const std::byte* out, std::byte* in,
                  std::size_t bytes) {
  const std::size_t share = bytes / sockets.size();
  std::vector<std::size_t> sent(sockets.size()), got(sockets.size());
  std::vector<pollfd> ready(sockets.size());
  for (std::size_t left = 2 * share * sockets.size(); left > 0;) {
    bool moved = false;
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      const std::size_t at = i * share;
      const auto receive = std::min(share - got[i], kMessageBytes);
      const auto r = receive == 0
                         ? -EAGAIN
                         : Receive(sockets[i], in + at + got[i], receive);
      const auto send = std::min(share - sent[i], kMessageBytes);
      const auto s =
          send == 0 ? -EAGAIN : Send(sockets[i], out + at + sent[i], send);
      if (r > 0) got[i] += static_cast<std::size_t>(r);
      if (s > 0) sent[i] += static_cast<std::size_t>(s);
      if (r == 0 || (r < 0 && r != -EAGAIN) || (s < 0 && s != -EAGAIN)) {
        return false;
      }
      left -= static_cast<std::size_t>(std::max<std::int64_t>(r, 0) +
                                       std::max<std::int64_t>(s, 0));
      moved |= r > 0 || s > 0;
      ready[i] = {sockets[i].fd(),
                  static_cast<short>((got[i] < share ? POLLIN : 0) |
                                     (sent[i] < share ? POLLOUT : 0)),
                  0};
    }
    if (!moved && left > 0) ::poll(ready.data(), ready.size(), 1000);
  }
  return true;
}

class Exchanger final : public LinkEvents {
 public:
  explicit Exchanger(Sockets lanes) : poller_(Poller::Create().value()) {
    TcpLinkArgs args;
    args.address = "the other process";
    args.lanes = std::move(lanes);
    args.poller = poller_.get();
    args.events = this;
    link_ = TcpLink::Create(std::move(args)).value();
  }

  // Tags are offsets. `spin`: never block.
  bool Exchange(const std::byte* out, std::byte* in, std::size_t bytes,
                std::size_t message_bytes) {
    Post(out, bytes, message_bytes);
    in_ = in;
    return Await(bytes, false);
  }
  void Post(const std::byte* out, std::size_t bytes,
            std::size_t message_bytes) {
    for (std::size_t at = 0, i = 0; at < bytes; at += message_bytes, ++i) {
      OutMessage message;
      message.header.tag = at;
      message.header.payload_bytes = std::min(message_bytes, bytes - at);
      message.payload = {out + at, message.header.payload_bytes, {}};
      link_->Send(
          static_cast<int>(i % static_cast<std::size_t>(link_->lanes())),
          message);
    }
  }
  void SetLanding(std::byte* in) { in_ = in; }
  bool Await(std::size_t bytes, bool spin) {
    while ((got_ < bytes || link_->queued_messages() > 0) && !down_) {
      bool moved = link_->Poll();
      moved |= poller_->Poll(std::chrono::nanoseconds(0));
      if (!moved && !spin && link_->PrepareToSleep() && got_ < bytes) {
        poller_->Poll(std::chrono::seconds(1));
      }
    }
    got_ -= std::min(bytes, got_);
    return !down_;
  }

  Result<Landing> OnHeader(int, int, const Header& header) override {
    return Landing{in_ + header.tag, false};
  }
  void OnMessage(int, int, const Header& header) override {
    got_ += header.payload_bytes;
  }
  void OnDown(int, const Status&) override { down_ = true; }

 private:
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<TcpLink> link_;
  std::byte* in_ = nullptr;
  std::size_t got_ = 0;
  bool down_ = false;
};

bool BarePing(const Socket& socket, std::byte* data, bool first) {
  for (int half = 0; half < 2; ++half) {
    const bool sends = (half == 0) == first;
    for (std::size_t moved = 0; moved < kSmallBytes;) {
      const auto n = sends ? Send(socket, data + moved, kSmallBytes - moved)
                           : Receive(socket, data + moved, kSmallBytes - moved);
      if (n == 0 || (n < 0 && n != -EAGAIN)) return false;
      if (n > 0) moved += static_cast<std::size_t>(n);
    }
  }
  return true;
}

bool LinkPing(Exchanger* link, std::byte* data, bool first) {
  link->SetLanding(data);
  for (int half = 0; half < 2; ++half) {
    const bool sends = (half == 0) == first;
    if (sends) link->Post(data, kSmallBytes, kSmallBytes);
    if (!link->Await(sends ? 0 : kSmallBytes, true)) return false;
  }
  return true;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Timed(const std::function<bool()>& work) {
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  if (!work()) return -1;
  return Seconds(clock.Now() - begin);
}

// One process's part. The first prints.
int Run(Sockets bare, Sockets for_link, bool first) {
  const std::size_t lanes = bare.size();
  Exchanger link(std::move(for_link));
  std::vector<std::byte> out(kTotalBytes), in(kTotalBytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  }
  std::vector<double> bare_s, link_s, bare_us, link_us;
  for (int round = 0; round <= kRounds; ++round) {
    std::byte byte{};
    // Meet: neither process waits for the other within what is timed.
    if (!BareExchange(bare, &byte, &byte, 0)) return 1;
    std::memset(in.data(), 0, in.size());
    if (!BarePing(bare[0], in.data(), first)) return 1;
    const double b = Timed(
        [&] { return BareExchange(bare, out.data(), in.data(), kTotalBytes); });
    if (std::memcmp(in.data(), out.data(), kTotalBytes) != 0) return 2;
    std::memset(in.data(), 0, in.size());
    if (!BarePing(bare[0], in.data(), first)) return 1;
    const double l = Timed([&] {
      return link.Exchange(out.data(), in.data(), kTotalBytes, kMessageBytes);
    });
    if (std::memcmp(in.data(), out.data(), kTotalBytes) != 0) return 2;
    const double pb = Timed([&] {
      bool ok = true;
      for (int i = 0; ok && i < kRoundTrips; ++i) {
        ok = BarePing(bare[0], in.data(), first);
      }
      return ok;
    });
    const double pl = Timed([&] {
      bool ok = true;
      for (int i = 0; ok && i < kRoundTrips; ++i) {
        ok = LinkPing(&link, in.data(), first);
      }
      return ok;
    });
    if (b < 0 || l < 0 || pb < 0 || pl < 0) return 1;
    if (round == 0) continue;  // Warms up.
    bare_s.push_back(b);
    link_s.push_back(l);
    bare_us.push_back(pb / kRoundTrips * 1e6);
    link_us.push_back(pl / kRoundTrips * 1e6);
  }
  if (!first) return 0;
  std::printf("%5zu %10.1f %10.1f %7.2f %12.1f %12.1f %7.2f\n", lanes,
              Median(bare_s) * 1e3, Median(link_s) * 1e3,
              Median(link_s) / Median(bare_s), Median(bare_us), Median(link_us),
              Median(link_us) / Median(bare_us));
  std::fflush(stdout);
  return 0;
}

int Main() {
  std::printf(
      "# 128 MiB each way at once, 256 KiB messages; round trip of "
      "4 KiB; two processes, loopback\n");
  std::printf(
      "lanes    bare_ms    link_ms   ratio  bare_rtt_us  link_rtt_us"
      "   ratio\n");
  std::fflush(stdout);
  for (const int lanes : {1, 2, 4}) {
    auto bare = Connect(lanes);
    auto links = Connect(lanes);
    if (!bare || !links) return 1;
    const pid_t child = ::fork();
    if (child == 0) {
      bare->first.clear();
      links->first.clear();
      ::_exit(Run(std::move(bare->second), std::move(links->second), false));
    }
    bare->second.clear();
    links->second.clear();
    const int mine = Run(std::move(bare->first), std::move(links->first), true);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (mine != 0 || status != 0) {
      std::fprintf(stderr, "exchange failed: %d, %d\n", mine, status);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace gradientflow

int main() { return gradientflow::Main(); }
