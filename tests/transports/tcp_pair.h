#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
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

// Two TcpLinks joined by real connections, or one joined to raw sockets.
namespace gradientflow::tcp_test {

inline bool WaitFor(const Socket& socket, short events) {
  pollfd ready = {socket.fd(), events, 0};
  return ::poll(&ready, 1, 5000) == 1;
}

struct Connection {
  Socket one;
  Socket other;
};

// `at`: "127.0.0.1:0" or "[::1]:0". None if the host has no such address.
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

struct Received {
  int lane;
  Header header;
  std::vector<std::byte> payload;
};

// Keeps what comes. Landings are exactly as long as the payload, so that the
// address sanitizer sees any byte beyond.
class Recorder final : public LinkEvents {
 public:
  Result<Landing> OnHeader(int peer, int lane, const Header& header) override {
    (void)peer;
    ++headers;
    if (pause && pause(lane, header)) return Landing{nullptr, true};
    if (refuse && refuse(header)) {
      return Status(StatusCode::kInvalidArgument, "refused by the owner");
    }
    const auto slot = static_cast<std::size_t>(lane);
    if (slot >= landings.size()) landings.resize(slot + 1);
    landings[slot] = std::make_unique<std::byte[]>(header.payload_bytes);
    return Landing{header.payload_bytes == 0 ? nullptr : landings[slot].get(),
                   false};
  }
  void OnMessage(int peer, int lane, const Header& header) override {
    (void)peer;
    const std::byte* const data =
        landings[static_cast<std::size_t>(lane)].get();
    messages.push_back({lane, header, {data, data + header.payload_bytes}});
    if (on_message) on_message(lane, header);
  }
  void OnDown(int peer, const Status& why) override {
    ++downs;
    down_peer = peer;
    down = why;
    if (on_down) on_down();
  }

  std::function<bool(int lane, const Header& header)> pause;
  std::function<bool(const Header& header)> refuse;
  std::function<void(int lane, const Header& header)> on_message;
  std::function<void()> on_down;
  std::vector<std::unique_ptr<std::byte[]>> landings;
  std::vector<Received> messages;
  int headers = 0;
  int downs = 0;
  int down_peer = -1;
  Status down;
};

// One end: a link, its poller, and the payloads it sends.
class End {
 public:
  explicit End(int peer, std::vector<Socket> lanes) {
    poller = Poller::Create().value();
    TcpLinkArgs args;
    args.peer = peer;
    args.address = PeerAddress(lanes[0]).ToString();
    args.lanes = std::move(lanes);
    args.poller = poller.get();
    args.events = &events;
    link = TcpLink::Create(std::move(args)).value();
  }
  ~End() { link.reset(); }

  void Send(int lane, Tag tag, std::vector<std::byte> payload,
            MessageKind kind = MessageKind::kData) {
    sent.push_back(std::move(payload));
    OutMessage message;
    message.header.kind = kind;
    message.header.tag = tag;
    message.header.payload_bytes = sent.back().size();
    message.payload = {sent.back().data(), sent.back().size(), {}};
    message.done.run = [](void* self, std::uint64_t cookie, std::uint32_t,
                          const Status& status) {
      static_cast<End*>(self)->done.push_back({cookie, status});
    };
    message.done.self = this;
    message.done.cookie = tag;
    link->Send(lane, message);
  }
  bool Poll() {
    const bool moved = link->Poll();
    return poller->Poll(std::chrono::nanoseconds(0)) || moved;
  }

  std::unique_ptr<Poller> poller;
  Recorder events;
  std::unique_ptr<TcpLink> link;
  std::deque<std::vector<std::byte>> sent;
  std::vector<std::pair<std::uint64_t, Status>> done;
};

inline std::vector<std::byte> RandomBytes(std::size_t bytes,
                                          std::mt19937_64* random) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = (*random)();
    std::memcpy(&made[i], &word, std::min<std::size_t>(8, bytes - i));
  }
  return made;
}

// Drives the ends until `until`, or for 10 s at most. Returns whether it came.
inline bool Drive(const std::vector<End*>& ends,
                  const std::function<bool()>& until) {
  const SteadyClock clock;
  const Clock::Time give_up = clock.Now() + std::chrono::seconds(10);
  while (!until()) {
    if (clock.Now() > give_up) return false;
    bool moved = false;
    for (End* end : ends) moved |= end->Poll();
    if (!moved && !until() && ends[0]->link->PrepareToSleep()) {
      ends[0]->poller->Poll(std::chrono::milliseconds(1));
    }
  }
  return true;
}

// Rank 0 holds a link to rank 1, and the other way round.
struct Pair {
  Pair(int lanes, std::string_view at, std::size_t buffer_bytes = 0) {
    std::vector<Socket> left, right;
    for (int i = 0; i < lanes; ++i) {
      std::optional<Connection> made = MakeConnection(at, buffer_bytes);
      if (!made) return;
      left.push_back(std::move(made->one));
      right.push_back(std::move(made->other));
    }
    a = std::make_unique<End>(1, std::move(left));
    b = std::make_unique<End>(0, std::move(right));
  }
  bool valid() const { return b != nullptr; }
  bool Drive(const std::function<bool()>& until) {
    return tcp_test::Drive({a.get(), b.get()}, until);
  }

  std::unique_ptr<End> a;
  std::unique_ptr<End> b;
};

}  // namespace gradientflow::tcp_test
