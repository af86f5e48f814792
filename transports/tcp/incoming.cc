#include "transports/tcp/incoming.h"

#include <algorithm>
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
    lanes_[peer].resize(static_cast<std::size_t>(args_.lanes[peer]));
    missing_ += lanes_[peer].size();
  }
  most_connections_ = kPatienceForStrangers + kTriesPerLane * missing_;
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
  Socket& lane = lanes_[hello.from][hello.lane];
  if (lane.valid()) return false;
  lane = std::move(connection.socket);
  --missing_;
  return false;  // The lane has the socket; the entry can go.
}

bool IncomingLanes::complete(int peer) const {
  const auto& lanes = lanes_[static_cast<std::size_t>(peer)];
  return std::all_of(lanes.begin(), lanes.end(),
                     [](const Socket& lane) { return lane.valid(); });
}

std::vector<Socket> IncomingLanes::TakeLanes(int peer) {
  return std::move(lanes_[static_cast<std::size_t>(peer)]);
}

}  // namespace gradientflow
