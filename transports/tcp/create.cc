#include "transports/tcp/create.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/outgoing.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tcp_link.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// The longest wait, so that a clock that does not follow the kernel's is looked
// at, too.
constexpr milliseconds kLongestWait(100);

// Control messages have a lane of their own, which no data holds up.
int LanesOf(const TransportOptions& options) { return 1 + options.connections; }

// The state of one Connect().
class SetUp {
 public:
  SetUp(const TransportOptions& options, const ConnectArgs& args,
        const std::vector<Socket>& listeners)
      : options_(options),
        args_(args),
        listeners_(listeners),
        incoming_(ForIncoming()) {}

  Result<std::vector<std::unique_ptr<Link>>> Run();

 private:
  bool HasAddress(int rank) const {
    return rank != args_.rank &&
           !args_.addresses[static_cast<std::size_t>(rank)].empty();
  }
  IncomingLanes::Args ForIncoming() const;
  Status PrepareOutgoing();
  Result<std::vector<SocketAddress>> Candidates(int peer) const;
  bool Complete() const;
  Status Round(Clock::Time now);
  milliseconds Patience(Clock::Time now) const;
  Status Missing() const;
  Result<std::vector<std::unique_ptr<Link>>> MakeLinks();

  const TransportOptions& options_;
  const ConnectArgs& args_;
  const std::vector<Socket>& listeners_;
  IncomingLanes incoming_;
  Door door_;
  std::vector<OutgoingLane> outgoing_;  // By peer, then by lane.
};

IncomingLanes::Args SetUp::ForIncoming() const {
  IncomingLanes::Args incoming;
  incoming.rank = args_.rank;
  incoming.lanes = LanesOf(options_);
  incoming.session_key = args_.session_key;
  for (int r = 0; r < args_.size; ++r) {
    incoming.expected.push_back(r > args_.rank && HasAddress(r));
  }
  return incoming;
}

Result<std::vector<SocketAddress>> SetUp::Candidates(int peer) const {
  const std::string& text = args_.addresses[static_cast<std::size_t>(peer)];
  const Result<std::vector<SocketAddress>> all = SplitAddresses(text);
  if (!all.ok()) {
    return Status(all.status().code(), StrCat("address of rank ", peer, ": ",
                                              all.status().message()));
  }
  std::vector<SocketAddress> usable;
  for (const SocketAddress& address : all.value()) {
    const int version = address.family() == AF_INET6 ? 6 : 4;
    if (options_.ip_version == 0 || options_.ip_version == version) {
      usable.push_back(address);
    }
  }
  if (!usable.empty()) return usable;
  return Status(StatusCode::kInvalidArgument,
                StrCat("rank ", peer, ": expected an IPv", options_.ip_version,
                       " address, seen ", text));
}

// This rank connects to lower ranks, once for each lane. Higher ranks connect
// to this rank.
Status SetUp::PrepareOutgoing() {
  const Clock::Time now = args_.clock->Now();
  for (int peer = 0; peer < args_.rank; ++peer) {
    if (!HasAddress(peer)) continue;
    const Result<std::vector<SocketAddress>> candidates = Candidates(peer);
    if (!candidates.ok()) return candidates.status();
    for (int lane = 0; lane < LanesOf(options_); ++lane) {
      LaneHello hello;
      hello.session_key = args_.session_key;
      hello.from = static_cast<std::uint32_t>(args_.rank);
      hello.to = static_cast<std::uint32_t>(peer);
      hello.lane = static_cast<std::uint32_t>(lane);
      hello.lanes = static_cast<std::uint32_t>(LanesOf(options_));
      outgoing_.emplace_back(hello, candidates.value(),
                             options_.socket_buffer_bytes, now);
    }
  }
  return Status();
}

bool SetUp::Complete() const {
  return incoming_.complete() &&
         std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const OutgoingLane& lane) { return lane.connected(); });
}

milliseconds SetUp::Patience(Clock::Time now) const {
  Clock::Time until = std::min(args_.deadline, now + kLongestWait);
  for (const OutgoingLane& lane : outgoing_) {
    until = std::min(until, lane.due().value_or(until));
  }
  return std::chrono::ceil<milliseconds>(std::max(until, now) - now);
}

// Waits for the next event and handles what is ready.
Status SetUp::Round(Clock::Time now) {
  std::vector<OutgoingLane::Interest> interests;
  std::vector<std::size_t> lane_of;
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    const Status started = outgoing_[i].Start(now);
    // A stranger may hold the descriptor that the attempt lacks.
    if (!started.ok() && (started.code() != StatusCode::kResourceExhausted ||
                          !incoming_.DropOldestStranger())) {
      return started;
    }
    outgoing_[i].AddInterests(&interests);
    lane_of.resize(interests.size(), i);
  }
  std::vector<pollfd> ready;
  ready.reserve(interests.size());
  for (const OutgoingLane::Interest& interest : interests) {
    ready.push_back({interest.fd, interest.events, 0});
  }
  for (const int fd : incoming_.Descriptors()) ready.push_back({fd, POLLIN, 0});
  const std::size_t first_listener = ready.size();
  for (const Socket& listener : listeners_) {
    ready.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
  }
  const int timeout = static_cast<int>(Patience(now).count());
  if (::poll(ready.data(), ready.size(), timeout) < 0) {
    if (errno == EINTR) return Status();
    return SocketError(StatusCode::kInternal, "poll", errno);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].revents == 0) continue;
    if (i < interests.size()) {
      GF_RETURN_IF_ERROR(
          outgoing_[lane_of[i]].OnReady(interests[i].attempt, now));
    } else if (i < first_listener) {
      GF_RETURN_IF_ERROR(incoming_.OnReady(ready[i].fd));
    } else {
      door_.AcceptSome(listeners_[i - first_listener], now, &incoming_);
    }
  }
  return Status();
}

Status SetUp::Missing() const {
  std::string missing;
  const auto add = [&](int peer, const std::string& trouble) {
    missing += StrCat(missing.empty() ? "" : "; ", "rank ", peer, " (",
                      args_.addresses[static_cast<std::size_t>(peer)], ")",
                      trouble.empty() ? "" : ": ", trouble);
  };
  int named = -1;
  for (const OutgoingLane& lane : outgoing_) {
    if (lane.connected() || lane.peer() == named) continue;
    named = lane.peer();
    add(named, lane.trouble());
  }
  for (int r = args_.rank + 1; r < args_.size; ++r) {
    if (HasAddress(r) && !incoming_.complete(r)) add(r, "did not connect");
  }
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("rank ", args_.rank, " has no TCP connection in time with ",
             missing, door_.Trouble()));
}

// outgoing_ is in the order of PrepareOutgoing(): by peer, then by lane.
Result<std::vector<std::unique_ptr<Link>>> SetUp::MakeLinks() {
  std::vector<std::unique_ptr<Link>> links(
      static_cast<std::size_t>(args_.size));
  auto out = outgoing_.begin();
  for (int peer = 0; peer < args_.size; ++peer) {
    if (!HasAddress(peer)) continue;
    TcpLinkArgs link;
    link.peer = peer;
    link.poller = args_.poller;
    link.events = args_.events;
    if (peer > args_.rank) {
      link.lanes = incoming_.TakeLanes(peer);
    } else {
      for (int lane = 0; lane < LanesOf(options_); ++lane) {
        link.lanes.push_back((out++)->TakeSocket());
      }
    }
    link.address = PeerAddress(link.lanes[0]).ToString();
    Result<std::unique_ptr<TcpLink>> made = TcpLink::Create(std::move(link));
    if (!made.ok()) return made.status();
    links[static_cast<std::size_t>(peer)] = std::move(made).value();
  }
  return links;
}

Result<std::vector<std::unique_ptr<Link>>> SetUp::Run() {
  GF_RETURN_IF_ERROR(PrepareOutgoing());
  while (!Complete()) {
    const Clock::Time now = args_.clock->Now();
    if (now >= args_.deadline) return Missing();
    GF_RETURN_IF_ERROR(Round(now));
  }
  return MakeLinks();
}

Status CheckOptions(const TransportOptions& options) {
  if (options.connections < 0 || LanesOf(options) > kMaxTcpLanes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("connections per peer: expected 0 to ",
                         kMaxTcpLanes - 1, ", seen ", options.connections));
  }
  if (options.ip_version != 0 && options.ip_version != 4 &&
      options.ip_version != 6) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("IP version: expected 0, 4 or 6, seen ", options.ip_version));
  }
  return Status();
}

class TcpEndpoint final : public Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> Listen(
      const TransportOptions& options);

  std::string address() const override { return JoinAddresses(addresses_); }
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) override;

 private:
  explicit TcpEndpoint(const TransportOptions& options) : options_(options) {}

  const TransportOptions options_;
  std::vector<Socket> listeners_;  // Empty after Connect().
  std::vector<SocketAddress> addresses_;
};

Result<std::unique_ptr<Endpoint>> TcpEndpoint::Listen(
    const TransportOptions& options) {
  GF_RETURN_IF_ERROR(CheckOptions(options));
  const auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  const auto chosen = ChooseAddresses(interfaces.value(), options.socket_ifname,
                                      options.ip_version);
  if (!chosen.ok()) return chosen.status();
  std::unique_ptr<TcpEndpoint> endpoint(new TcpEndpoint(options));
  Status trouble;
  for (const SocketAddress& address : chosen.value()) {
    Result<Socket> listener = ListenOn(address, options.socket_buffer_bytes);
    // An address that has just come up or gone is no reason to give up.
    if (!listener.ok()) {
      trouble = listener.status();
      continue;
    }
    endpoint->addresses_.push_back(LocalAddress(listener.value()));
    endpoint->listeners_.push_back(std::move(listener).value());
  }
  if (endpoint->listeners_.empty()) return trouble;
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Result<std::vector<std::unique_ptr<Link>>> TcpEndpoint::Connect(
    const ConnectArgs& args) {
  GF_RETURN_IF_ERROR(ValidateConnect(args));
  GF_RETURN_IF_ERROR(args.failed);
  if (listeners_.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "this TCP endpoint has connected already");
  }
  const std::vector<Socket> listeners = std::move(listeners_);
  listeners_.clear();
  return SetUp(options_, args, listeners).Run();
}

}  // namespace

constinit const TransportKind kTcpTransport = {
    .name = "tcp",
    .open = &TcpEndpoint::Listen,
};

}  // namespace gradientflow
