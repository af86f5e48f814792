#include "transports/tcp/incoming.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// Strangers that may wait at the same time, in addition to the peers.
constexpr std::size_t kPatienceForStrangers = 64;
// A peer may try each of its routes to this rank at the same time.
constexpr std::size_t kTriesPerLane = 4;

}  // namespace

IncomingLanes::IncomingLanes(Args args)
    : args_(std::move(args)), lanes_(args_.expected.size()) {
  const auto lanes = static_cast<std::size_t>(args_.lanes);
  for (std::size_t peer = 0; peer < lanes_.size(); ++peer) {
    if (!args_.expected[peer]) continue;
    lanes_[peer].resize(lanes);
    missing_ += lanes;
  }
  most_connections_ = kPatienceForStrangers + kTriesPerLane * missing_;
}

bool IncomingLanes::full() const {
  return connections_.size() >= most_connections_;
}

bool IncomingLanes::DropOldestStranger() {
  const auto stranger =
      std::find_if(connections_.begin(), connections_.end(),
                   [](const Connection& c) { return !c.greeted; });
  if (stranger == connections_.end()) return false;
  connections_.erase(stranger);
  return true;
}

void IncomingLanes::Admit(Socket socket) {
  connections_.emplace_back();
  connections_.back().socket = std::move(socket);
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
    if (hello.ok() && IsPeer(hello.value())) {
      const Result<bool> keep = OnHello(*at, hello.value());
      if (!keep.ok()) return keep.status();
      if (keep.value()) return Status();
    }
  }
  connections_.erase(at);
  return Status();
}

bool IncomingLanes::IsPeer(const LaneHello& hello) const {
  return SameKey(hello.session_key, args_.session_key) &&
         hello.to == static_cast<std::uint32_t>(args_.rank) &&
         hello.from < lanes_.size() && args_.expected[hello.from];
}

// kHello is answered by kWelcome. The peer may have several connections open
// for a lane; kConfirm names the one to keep.
Result<bool> IncomingLanes::OnHello(Connection& connection,
                                    const LaneHello& hello) {
  if (hello.step == LaneHello::Step::kHello && !connection.greeted) {
    if (!PrepareConnection(connection.socket).ok()) return false;
    LaneHello welcome = hello;
    welcome.step = LaneHello::Step::kWelcome;
    welcome.lanes = static_cast<std::uint32_t>(args_.lanes);
    std::swap(welcome.from, welcome.to);
    const bool sent = WriteHello(connection.socket, welcome).ok();
    if (hello.lanes != welcome.lanes) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", hello.from, " (",
                           PeerAddress(connection.socket).ToString(), ") has ",
                           hello.lanes, " connections per peer, rank ",
                           args_.rank, " has ", args_.lanes,
                           ": expected the same number on all ranks"));
    }
    connection.greeted = sent;
    return sent;
  }
  if (hello.step != LaneHello::Step::kConfirm || !connection.greeted ||
      hello.lane >= static_cast<std::uint32_t>(args_.lanes)) {
    return false;
  }
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
