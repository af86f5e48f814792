#include "transports/tcp/incoming.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// A peer proves itself within a round trip.
constexpr std::chrono::seconds kAnswerPatience(10);
// Peers that connect at the same time find room beside the strangers. Each may
// try several of its routes to this rank for every lane.
constexpr std::size_t kPeersAtOnce = 8;
constexpr std::size_t kTriesPerLane = 4;

}  // namespace

IncomingLanes::IncomingLanes(Args args, const Clock& clock)
    : args_(std::move(args)),
      clock_(clock),
      peers_(args_.lanes.size()),
      most_connections_(args_.most_strangers) {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    Expect(static_cast<int>(peer), args_.lanes[peer]);
  }
}

// The number of the dial stays: what was opened before it may still arrive.
void IncomingLanes::Expect(int peer, int lanes) {
  std::vector<Lane>& of = peers_[static_cast<std::size_t>(peer)].lanes;
  of.clear();
  of.resize(static_cast<std::size_t>(lanes));
  most_connections_ =
      std::max(most_connections_,
               args_.most_strangers + kPeersAtOnce * kTriesPerLane * of.size());
}

bool IncomingLanes::full() const {
  return connections_.size() >= most_connections_;
}

bool IncomingLanes::DropOldestStranger() {
  if (connections_.empty()) return false;
  connections_.pop_front();
  return true;
}

void IncomingLanes::DropTheSilent() {
  const Clock::Time now = clock_.Now();
  while (!connections_.empty() &&
         now - connections_.front().since >= kAnswerPatience) {
    connections_.pop_front();
  }
}

void IncomingLanes::Admit(Socket socket) {
  connections_.emplace_back();
  connections_.back().socket = std::move(socket);
  connections_.back().since = clock_.Now();
}

std::vector<int> IncomingLanes::Descriptors() const {
  std::vector<int> descriptors;
  descriptors.reserve(connections_.size());
  for (const Connection& connection : connections_) {
    descriptors.push_back(connection.socket.fd());
  }
  return descriptors;
}

std::vector<int> IncomingLanes::LaneDescriptors() const {
  std::vector<int> descriptors;
  for (const Lanes& of_peer : peers_) {
    for (const Lane& lane : of_peer.lanes) {
      if (lane.socket.valid()) descriptors.push_back(lane.socket.fd());
    }
  }
  return descriptors;
}

void IncomingLanes::DropLanesWith(int fd) {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const std::vector<Lane>& lanes = peers_[peer].lanes;
    if (std::any_of(lanes.begin(), lanes.end(), [fd](const Lane& lane) {
          return lane.socket.fd() == fd;
        })) {
      return Expect(static_cast<int>(peer), static_cast<int>(lanes.size()));
    }
  }
}

// A connection whose hello is wrong is closed without a word.
Status IncomingLanes::OnReady(int fd) {
  const auto at =
      std::find_if(connections_.begin(), connections_.end(),
                   [fd](const Connection& c) { return c.socket.fd() == fd; });
  if (at == connections_.end()) return Status();
  const HelloReader::State state = at->reader.Read(at->socket);
  if (state == HelloReader::State::kWaiting) return Status();
  if (state == HelloReader::State::kComplete) {
    const Result<LaneHello> hello = at->reader.Take();
    if (hello.ok() && FitsPeer(hello.value())) {
      const Result<bool> keep = OnHello(*at, hello.value());
      if (!keep.ok()) return keep.status();
      if (keep.value()) return Status();
    }
  }
  connections_.erase(at);
  return Status();
}

bool IncomingLanes::FitsPeer(const LaneHello& hello) const {
  return hello.to == static_cast<std::uint32_t>(args_.rank) &&
         hello.from < peers_.size() && !peers_[hello.from].lanes.empty();
}

// The answer proves this side, and challenges the other.
bool IncomingLanes::Answer(Connection& connection, const LaneHello& hello) {
  const Result<Bits256> challenge = RandomBits();
  if (!challenge.ok() || !PrepareConnection(connection.socket).ok()) {
    return false;
  }
  LaneHello welcome = hello;
  welcome.kind = LaneHello::Kind::kWelcome;
  welcome.lanes = static_cast<std::uint32_t>(peers_[hello.from].lanes.size());
  std::swap(welcome.from, welcome.to);
  welcome.nonce = connection.challenge = challenge.value();
  welcome.proof = ProofOf(welcome, args_.secret, hello.nonce);
  connection.hello = hello;
  return WriteHello(connection.socket, welcome).ok();
}

// kHello is answered by kWelcome. The peer may have several connections open
// for a lane; kConfirm, which must repeat the rest of kHello, names the one to
// keep.
Result<bool> IncomingLanes::OnHello(Connection& connection,
                                    const LaneHello& hello) {
  if (hello.kind == LaneHello::Kind::kHello && !connection.hello) {
    return Answer(connection, hello);
  }
  if (hello.kind != LaneHello::Kind::kConfirm || !connection.hello ||
      hello.from != connection.hello->from ||
      hello.lane != connection.hello->lane ||
      hello.dial != connection.hello->dial ||
      !IsProven(hello, args_.secret, connection.challenge)) {
    return false;
  }
  Lanes& of_peer = peers_[hello.from];
  if (hello.lanes != of_peer.lanes.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rank ", hello.from, " (",
                         PeerAddress(connection.socket).ToString(), ") has ",
                         hello.lanes, " connections per peer, rank ",
                         args_.rank, " has ", of_peer.lanes.size(),
                         ": expected the same number on all ranks"));
  }
  if (hello.lane >= hello.lanes || hello.dial < of_peer.dial) return false;
  // A peer whose lanes were not kept has begun again.
  if (hello.dial > of_peer.dial) {
    Expect(static_cast<int>(hello.from), static_cast<int>(hello.lanes));
    of_peer.dial = hello.dial;
  }
  of_peer.lanes[hello.lane] = {std::move(connection.socket),
                               connection.hello->nonce};
  return false;  // The lane has the socket; the entry can go.
}

std::vector<Socket> IncomingLanes::TakeLanes(int peer) {
  std::vector<Socket> taken;
  Lanes& of_peer = peers_[static_cast<std::size_t>(peer)];
  for (Lane& lane : std::exchange(of_peer.lanes, {})) {
    taken.push_back(std::move(lane.socket));
  }
  return taken;
}

int IncomingLanes::FindComplete() {
  const auto is_missing = [](const Lane& lane) { return !lane.socket.valid(); };
  const auto has_ended = [](const Lane& lane) { return HasEnded(lane.socket); };
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const auto peer = static_cast<int>(r);
    const std::vector<Lane>& lanes = peers_[r].lanes;
    if (lanes.empty() || std::ranges::any_of(lanes, is_missing)) continue;
    // If messages are in front of the end, the link will find it.
    if (std::ranges::none_of(lanes, has_ended)) return peer;
    Expect(peer, static_cast<int>(lanes.size()));
  }
  return -1;
}

Status IncomingLanes::Accept(int peer) const {
  const std::vector<Lane>& lanes = peers_[static_cast<std::size_t>(peer)].lanes;
  LaneHello accept;
  accept.kind = LaneHello::Kind::kAccept;
  accept.from = static_cast<std::uint32_t>(args_.rank);
  accept.to = static_cast<std::uint32_t>(peer);
  accept.lanes = static_cast<std::uint32_t>(lanes.size());
  accept.proof = ProofOf(accept, args_.secret, lanes[0].nonce);
  return WriteHello(lanes[0].socket, accept);
}

}  // namespace gradientflow
