#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/transports/link_owner.h"
#include "transports/link.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tcp_link.h"

// Real connections, and links over them.
namespace gradientflow::tcp_test {

inline bool WaitFor(const Socket& socket, short events) {
  pollfd ready = {socket.fd(), events, 0};
  return ::poll(&ready, 1, 5000) == 1;
}

struct Connection {
  Socket one;
  Socket other;
};

// `at` is "127.0.0.1:0" or "[::1]:0". Returns none if the host has no such
// address.
inline std::optional<Connection> MakeConnection(std::string_view at,
                                                std::size_t buffer_bytes = 0) {
  Result<Socket> listener =
      ListenOn(SocketAddress::Parse(at).value(), buffer_bytes);
  if (!listener.ok()) return std::nullopt;
  Result<Socket> one =
      StartConnect(LocalAddress(listener.value()), buffer_bytes);
  if (!one.ok() || !WaitFor(listener.value(), POLLIN)) return std::nullopt;
  Result<Socket> other = Accept(listener.value());
  if (!other.ok() || !WaitFor(one.value(), POLLOUT)) return std::nullopt;
  if (!PrepareConnection(one.value()).ok()) return std::nullopt;
  if (!PrepareConnection(other.value()).ok()) return std::nullopt;
  return Connection{std::move(one).value(), std::move(other).value()};
}

// One io thread, once a line of 10 Gb/s has been measured.
inline constexpr int kWhenMeasured = -1;
// `owner`'s link to rank `peer` over these connections.
inline std::unique_ptr<Link> MakeLink(int peer, std::vector<Socket> lanes,
                                      testing::LinkOwner* owner,
                                      int io_threads = 0) {
  TcpLinkArgs args;
  args.peer = peer;
  args.address = PeerAddress(lanes[0]).ToString();
  args.lanes = std::move(lanes);
  args.poller = owner->poller();
  args.events = owner;
  args.io = (io_threads == kWhenMeasured
                 ? IoThreads::StartWhenMeasured(4, owner->poller())
                 : IoThreads::Start(io_threads, owner->poller()))
                .value();
  return TcpLink::Create(std::move(args)).value();
}

}  // namespace gradientflow::tcp_test
