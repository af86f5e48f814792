#include "transports/tcp/set_up.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/door.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/last_word.h"
#include "transports/tcp/outgoing.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/ways.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// The longest wait, so that a clock that does not follow the kernel's is looked
// at, too.
constexpr milliseconds kLongestWait(100);
// How often to look after peers while others are awaited.
constexpr milliseconds kLookEvery(200);
// Peers that are looked after at the same time.
constexpr std::size_t kMostProbes = 16;

// The state of one Connect(). It watches the peers that it waits for:
//
//   outgoing_   a lower rank that has ended refuses the connection
//   probes_     a higher rank should connect here; one that is late is dialled,
//               which it takes for a stranger, to see whether it refuses
//   watched_    a peer whose lanes are complete may fail meanwhile, and say why
class SetUp {
 public:
  SetUp(const TransportOptions& options, const ConnectArgs& args,
        const std::vector<Socket>& listeners, int rails)
      : options_(options), args_(args), listeners_(listeners), rails_(rails) {}

  Result<std::vector<std::unique_ptr<Link>>> Run();

 private:
  bool HasAddress(int rank) const {
    return rank != args_.rank &&
           !args_.addresses[static_cast<std::size_t>(rank)].empty();
  }
  Status Connect();
  Status Prepare();
  Status PreparePeer(int peer, const std::vector<InterfaceAddress>& interfaces);
  IncomingLanes::Args ForIncoming() const;
  OutgoingLane::Args LaneTo(int peer, int lane) const;
  void StartProbes(Clock::Time now);
  bool IsConnected(int peer) const;
  const Socket& FirstLane(int peer) const;
  Status CheckWatched();
  Status CheckRefusals() const;
  bool Complete() const;
  Status Round(Clock::Time now);
  milliseconds Patience(Clock::Time now) const;
  Status Missing() const;
  Result<std::vector<std::unique_ptr<Link>>> MakeLinks();

  const TransportOptions& options_;
  const ConnectArgs& args_;
  const std::vector<Socket>& listeners_;
  const int rails_;
  // By rank: the addresses that this rank may use, and how many lanes there
  // are.
  std::vector<std::vector<RatedAddress>> peers_;
  std::vector<int> lanes_;
  std::optional<IncomingLanes> incoming_;
  Door door_;
  std::list<OutgoingLane> outgoing_;  // By peer, then by lane.
  std::list<OutgoingLane> probes_;
  Clock::Time look_at_{};
  std::vector<bool> heard_;  // By rank: it has all its lanes.
};

// This rank connects to lower ranks, once for each lane. Higher ranks connect
// to this rank.
Status SetUp::Prepare() {
  const auto ranks = static_cast<std::size_t>(args_.size);
  const Clock::Time now = args_.clock->Now();
  look_at_ = now + kLookEvery;
  heard_.resize(ranks);
  peers_.resize(ranks);
  lanes_.resize(ranks);
  const auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  for (int peer = 0; peer < args_.size; ++peer) {
    if (!HasAddress(peer)) continue;
    GF_RETURN_IF_ERROR(PreparePeer(peer, interfaces.value()));
    const auto at = static_cast<std::size_t>(peer);
    for (int lane = 0; peer < args_.rank && lane < lanes_[at]; ++lane) {
      outgoing_.emplace_back(LaneTo(peer, lane), RouteOfLane(peers_[at], lane),
                             now);
    }
  }
  incoming_.emplace(ForIncoming(), *args_.clock);
  return Status();
}

// Both ranks of a pair count its lanes alike, by the addresses that both have
// published. Only the one that connects needs an address that it may use.
Status SetUp::PreparePeer(int peer,
                          const std::vector<InterfaceAddress>& interfaces) {
  const auto at = static_cast<std::size_t>(peer);
  Result<std::vector<RatedAddress>> published =
      PublishedBy(peer, args_.addresses[at]);
  if (!published.ok()) return published.status();
  lanes_[at] =
      LanesBetween(options_, std::min(rails_, RailsIn(published.value())));
  peers_[at] = WaysTo(std::move(published).value(), options_, interfaces);
  if (!peers_[at].empty() || peer > args_.rank) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("rank ", peer, ": expected an IPv", options_.ip_version,
                       " address, seen ", args_.addresses[at]));
}

IncomingLanes::Args SetUp::ForIncoming() const {
  IncomingLanes::Args incoming;
  incoming.rank = args_.rank;
  incoming.secret = args_.secret;
  incoming.lanes = lanes_;
  std::fill_n(incoming.lanes.begin(), args_.rank, 0);
  return incoming;
}

OutgoingLane::Args SetUp::LaneTo(int peer, int lane) const {
  OutgoingLane::Args out;
  out.secret = args_.secret;
  out.buffer_bytes = options_.socket_buffer_bytes;
  out.hello.from = static_cast<std::uint32_t>(args_.rank);
  out.hello.to = static_cast<std::uint32_t>(peer);
  out.hello.lane = static_cast<std::uint32_t>(lane);
  out.hello.lanes =
      static_cast<std::uint32_t>(lanes_[static_cast<std::size_t>(peer)]);
  return out;
}

// Those that have connected meanwhile make room for others.
void SetUp::StartProbes(Clock::Time now) {
  std::erase_if(probes_, [this](const OutgoingLane& probe) {
    return incoming_->complete(probe.peer());
  });
  const auto probed = [this](int peer) {
    return std::any_of(
        probes_.begin(), probes_.end(),
        [peer](const OutgoingLane& probe) { return probe.peer() == peer; });
  };
  for (int peer = args_.rank + 1;
       peer < args_.size && probes_.size() < kMostProbes; ++peer) {
    if (!HasAddress(peer) || incoming_->complete(peer) || probed(peer))
      continue;
    const std::vector<RatedAddress>& routes =
        peers_[static_cast<std::size_t>(peer)];
    if (routes.empty()) continue;
    OutgoingLane::Args probe = LaneTo(peer, 0);
    probe.reachable = IsOnThisHost(routes, listeners_);
    probes_.emplace_back(probe, RouteOfLane(routes, 0), now);
  }
}

bool SetUp::IsConnected(int peer) const {
  if (peer > args_.rank) return incoming_->complete(peer);
  const auto connected = std::count_if(
      outgoing_.begin(), outgoing_.end(), [peer](const OutgoingLane& lane) {
        return lane.peer() == peer && lane.connected();
      });
  return connected == lanes_[static_cast<std::size_t>(peer)];
}

// REQUIRES IsConnected(peer).
const Socket& SetUp::FirstLane(int peer) const {
  if (peer > args_.rank) return incoming_->first_lane(peer);
  return std::find_if(
             outgoing_.begin(), outgoing_.end(),
             [peer](const OutgoingLane& lane) { return lane.peer() == peer; })
      ->socket();
}

Status SetUp::CheckWatched() {
  for (int peer = 0; peer < args_.size; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (!HasAddress(peer) || heard_[at] || !IsConnected(peer)) continue;
    const std::optional<Status> word = LastWord(FirstLane(peer));
    heard_[at] = !word.has_value();
    if (!word || word->ok()) continue;
    if (word->code() != StatusCode::kUnavailable) return *word;
    return Status(word->code(), StrCat("rank ", peer, " (", args_.addresses[at],
                                       ") failed while "
                                       "ranks connected: ",
                                       word->message()));
  }
  return Status();
}

Status SetUp::CheckRefusals() const {
  for (const std::list<OutgoingLane>* lanes : {&outgoing_, &probes_}) {
    for (const OutgoingLane& lane : *lanes) {
      if (!lane.ended() || IsConnected(lane.peer())) continue;
      return Status(
          StatusCode::kUnavailable,
          StrCat("rank ", lane.peer(), " (",
                 args_.addresses[static_cast<std::size_t>(lane.peer())],
                 ") ended while ranks connected: ", lane.trouble()));
    }
  }
  return Status();
}

bool SetUp::Complete() const {
  return incoming_->complete() &&
         std::all_of(outgoing_.begin(), outgoing_.end(),
                     [](const OutgoingLane& lane) { return lane.connected(); });
}

milliseconds SetUp::Patience(Clock::Time now) const {
  Clock::Time until = std::min(args_.deadline, now + kLongestWait);
  for (const std::list<OutgoingLane>* lanes : {&outgoing_, &probes_}) {
    for (const OutgoingLane& lane : *lanes) {
      until = std::min(until, lane.due().value_or(until));
    }
  }
  return std::chrono::ceil<milliseconds>(std::max(until, now) - now);
}

// Waits for the next event and handles what is ready.
Status SetUp::Round(Clock::Time now) {
  incoming_->DropTheSilent();
  if (now >= look_at_) {
    look_at_ = now + kLookEvery;
    StartProbes(now);
    GF_RETURN_IF_ERROR(CheckWatched());
  }
  std::vector<OutgoingLane::Interest> interests;
  std::vector<OutgoingLane*> lane_of;
  for (std::list<OutgoingLane>* lanes : {&outgoing_, &probes_}) {
    for (OutgoingLane& lane : *lanes) {
      const Status started = lane.Start(now);
      // A stranger may hold the descriptor that the attempt lacks. Probes can
      // wait.
      if (!started.ok() && lanes == &outgoing_ &&
          (started.code() != StatusCode::kResourceExhausted ||
           !incoming_->DropOldestStranger())) {
        return started;
      }
      lane.AddInterests(&interests);
      lane_of.resize(interests.size(), &lane);
    }
  }
  std::vector<pollfd> ready;
  ready.reserve(interests.size());
  for (const OutgoingLane::Interest& interest : interests) {
    ready.push_back({interest.fd, interest.events, 0});
  }
  for (const int fd : incoming_->Descriptors())
    ready.push_back({fd, POLLIN, 0});
  const std::size_t first_listener = ready.size();
  for (const Socket& listener : listeners_) {
    ready.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
  }
  const int timeout = static_cast<int>(Patience(now).count());
  if (::poll(ready.data(), ready.size(), timeout) < 0) {
    if (errno == EINTR) return Status();
    return SocketError(StatusCode::kInternal, "poll", errno);
  }
  bool quiet = true;  // Nobody has anything to say to this rank.
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].revents == 0) continue;
    if (i < interests.size()) {
      GF_RETURN_IF_ERROR(lane_of[i]->OnReady(interests[i].attempt, now));
      continue;
    }
    quiet = false;
    if (i < first_listener) {
      GF_RETURN_IF_ERROR(incoming_->OnReady(ready[i].fd));
    } else {
      door_.AcceptSome(listeners_[i - first_listener], now, &*incoming_);
    }
  }
  return quiet ? CheckRefusals() : Status();
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
    if (HasAddress(r) && !incoming_->complete(r)) add(r, "did not connect");
  }
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("rank ", args_.rank, " has no TCP connection in time with ",
             missing, door_.Trouble()));
}

// Makes the links to all peers whose lanes are complete. outgoing_ is in the
// order of Prepare(): by peer, then by lane.
Result<std::vector<std::unique_ptr<Link>>> SetUp::MakeLinks() {
  std::vector<std::unique_ptr<Link>> links(
      static_cast<std::size_t>(args_.size));
  for (int peer = 0; peer < args_.size; ++peer) {
    if (!HasAddress(peer) || !IsConnected(peer)) continue;
    TcpLinkArgs link;
    link.peer = peer;
    link.poller = args_.poller;
    link.events = args_.events;
    if (peer > args_.rank) link.lanes = incoming_->TakeLanes(peer);
    for (OutgoingLane& lane : outgoing_) {
      if (lane.peer() == peer) link.lanes.push_back(lane.TakeSocket());
    }
    link.address = PeerAddress(link.lanes[0]).ToString();
    Result<std::unique_ptr<TcpLink>> made = TcpLink::Create(std::move(link));
    if (!made.ok()) return made.status();
    links[static_cast<std::size_t>(peer)] = std::move(made).value();
  }
  return links;
}

Status SetUp::Connect() {
  GF_RETURN_IF_ERROR(Prepare());
  while (!Complete()) {
    const Clock::Time now = args_.clock->Now();
    if (now >= args_.deadline) return Missing();
    GF_RETURN_IF_ERROR(Round(now));
  }
  return Status();
}

Result<std::vector<std::unique_ptr<Link>>> SetUp::Run() {
  const Status connected = Connect();
  if (connected.ok()) return MakeLinks();
  if (args_.links_of_failure != nullptr && incoming_) {
    auto links = MakeLinks();
    if (links.ok()) *args_.links_of_failure = std::move(links).value();
  }
  return connected;
}

}  // namespace

Result<std::vector<std::unique_ptr<Link>>> SetUpLanes(
    const TransportOptions& options, const ConnectArgs& args,
    const std::vector<Socket>& listeners, int rails) {
  return SetUp(options, args, listeners, rails).Run();
}

}  // namespace gradientflow
