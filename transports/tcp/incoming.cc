#include "transports/tcp/incoming.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// Strangers that may wait at the same time, in addition to the peers.
constexpr std::size_t kPatienceForStrangers = 256;
// A peer proves itself within a round trip.
constexpr std::chrono::seconds kAnswerPatience(10);
// A peer may try each of its routes to this rank at the same time.
constexpr std::size_t kTriesPerLane = 4;

}  // namespace

IncomingLanes::IncomingLanes(Args args, const Clock& clock)
    : args_(std::move(args)), clock_(clock), lanes_(args_.lanes.size()) {
  for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
    Expect(static_cast<int>(peer), args_.lanes[peer]);
  }
}

void IncomingLanes::Expect(int peer, int lanes) {
  std::vector<Lane>& of = lanes_[static_cast<std::size_t>(peer)];
  missing_ -= static_cast<std::size_t>(
      std::count_if(of.begin(), of.end(),
                    [](const Lane& lane) { return !lane.socket.valid(); }));
  of.clear();
  of.resize(static_cast<std::size_t>(lanes));
  missing_ += of.size();
  most_connections_ = std::max(
      most_connections_, kPatienceForStrangers + kTriesPerLane * missing_);
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
  for (const std::vector<Lane>& of_peer : lanes_) {
    for (const Lane& lane : of_peer) {
      if (lane.socket.valid()) descriptors.push_back(lane.socket.fd());
    }
  }
  return descriptors;
}

void IncomingLanes::DropLanesWith(int fd) {
  for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
    const std::vector<Lane>& lanes = lanes_[peer];
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
         hello.from < lanes_.size() && !lanes_[hello.from].empty();
}

// The answer proves this side, and challenges the other.
bool IncomingLanes::Answer(Connection& connection, const LaneHello& hello) {
  const Result<Bits256> challenge = RandomBits();
  if (!challenge.ok() || !PrepareConnection(connection.socket).ok()) {
    return false;
  }
  LaneHello welcome = hello;
  welcome.step = LaneHello::Step::kWelcome;
  welcome.lanes = static_cast<std::uint32_t>(lanes_[hello.from].size());
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
  if (hello.step == LaneHello::Step::kHello && !connection.hello) {
    return Answer(connection, hello);
  }
  if (hello.step != LaneHello::Step::kConfirm || !connection.hello ||
      hello.from != connection.hello->from ||
      hello.lane != connection.hello->lane ||
      !IsProven(hello, args_.secret, connection.challenge)) {
    return false;
  }
  if (hello.lanes != lanes_[hello.from].size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rank ", hello.from, " (",
                         PeerAddress(connection.socket).ToString(), ") has ",
                         hello.lanes, " connections per peer, rank ",
                         args_.rank, " has ", lanes_[hello.from].size(),
                         ": expected the same number on all ranks"));
  }
  if (hello.lane >= hello.lanes) return false;
  Lane& lane = lanes_[hello.from][hello.lane];
  // A peer whose lanes were not kept may have begun again.
  if (!lane.socket.valid()) --missing_;
  lane = {std::move(connection.socket), connection.hello->nonce};
  return false;  // The lane has the socket; the entry can go.
}

bool IncomingLanes::complete(int peer) const {
  const auto& lanes = lanes_[static_cast<std::size_t>(peer)];
  return std::all_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return lane.socket.valid(); });
}

std::vector<Socket> IncomingLanes::TakeLanes(int peer) {
  std::vector<Socket> taken;
  for (Lane& lane : std::exchange(lanes_[static_cast<std::size_t>(peer)], {})) {
    taken.push_back(std::move(lane.socket));
  }
  return taken;
}

int IncomingLanes::FindComplete() {
  for (std::size_t r = 0; r < lanes_.size(); ++r) {
    const auto peer = static_cast<int>(r);
    std::vector<Lane>& lanes = lanes_[r];
    if (lanes.empty() || !complete(peer)) continue;
    // If messages are in front of the end, the link will find it.
    if (std::none_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return HasEnded(lane.socket); })) {
      return peer;
    }
    Expect(peer, static_cast<int>(lanes.size()));
  }
  return -1;
}

Status IncomingLanes::Accept(int peer) const {
  const std::vector<Lane>& lanes = lanes_[static_cast<std::size_t>(peer)];
  LaneHello accept;
  accept.step = LaneHello::Step::kAccept;
  accept.from = static_cast<std::uint32_t>(args_.rank);
  accept.to = static_cast<std::uint32_t>(peer);
  accept.lanes = static_cast<std::uint32_t>(lanes.size());
  accept.proof = ProofOf(accept, args_.secret, lanes[0].nonce);
  return WriteHello(lanes[0].socket, accept);
}

}  // namespace gradientflow
