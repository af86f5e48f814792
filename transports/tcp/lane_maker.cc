#include "transports/tcp/lane_maker.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/settings.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/ways.h"

// How the lanes of a pair are made:
//
//   Dial()          this rank wants them: Begin() opens all at once
//   Round()         looks at all sockets once
//   KeepIncoming()  all lanes of a peer have arrived
//   KeepOutgoing()  all lanes to a peer are there, and are kept
//   Keep()          hands them over
namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// How long to wait after a higher rank has refused lanes because it is making
// its own.
constexpr milliseconds kBackoff(50);
// How often to look at a peer whose address is not known.
constexpr milliseconds kLookEvery(100);

}  // namespace

LaneMaker::LaneMaker(Args args)
    : args_(std::move(args)),
      incoming_({args_.rank, args_.secret,
                 std::vector<int>(static_cast<std::size_t>(args_.size)),
                 args_.most_strangers},
                *args_.clock),
      peers_(static_cast<std::size_t>(args_.size)) {}

// Both ranks of a pair count its lanes alike, by the addresses that both have
// published.
Status LaneMaker::Know(int peer, const std::string& address) {
  Peer& to = at(peer);
  auto published = PublishedBy(peer, address);
  if (!published.ok()) return published.status();
  to.address = address;
  to.lanes = LanesBetween(args_.options,
                          std::min(args_.rails, RailsIn(published.value())));
  to.published = std::move(published).value();
  to.ways_found = false;
  incoming_.Expect(peer, to.lanes);
  return Status();
}

const std::vector<RatedAddress>& LaneMaker::FindWays(int peer) {
  Peer& to = at(peer);
  if (std::exchange(to.ways_found, true)) return to.ways;
  to.ways = WaysTo(to.published, args_.options, args_.interfaces);
  to.on_this_host = IsOnThisHost(to.ways, *args_.listeners);
  return to.ways;
}

void LaneMaker::Dial(int peer) {
  if (IsDialling(peer)) return;
  dials_.emplace_back();
  dials_.back().peer = peer;
}

void LaneMaker::DialIfPossible(int peer) {
  if (IsDialling(peer)) return;
  Dial(peer);
  dials_.back().may_wait = true;
}

void LaneMaker::StopDialling(int peer) {
  dials_.remove_if([peer](const Dialling& d) { return d.peer == peer; });
}

const LaneMaker::Dialling* LaneMaker::FindDialling(int peer) const {
  const auto found =
      std::find_if(dials_.begin(), dials_.end(),
                   [peer](const Dialling& d) { return d.peer == peer; });
  return found == dials_.end() ? nullptr : &*found;
}

std::string LaneMaker::TroubleWith(int peer) const {
  const Dialling* const dialling = FindDialling(peer);
  if (dialling == nullptr) return "";
  const std::string& before = dialling->trouble;
  std::string trouble;
  for (const OutgoingLane& lane : dialling->lanes) {
    if (!lane.connected()) trouble = lane.Trouble();
  }
  if (trouble.empty() || before.empty()) return trouble + before;
  return StrCat(trouble, "; before that ", before);
}

std::vector<PeerRefusal> LaneMaker::Refusals() const {
  std::vector<PeerRefusal> refusals;
  for (const Dialling& dialling : dials_) {
    std::optional<PeerRefusal> longest;
    for (const OutgoingLane& lane : dialling.lanes) {
      std::optional<PeerRefusal> refusal = lane.refusal();
      if (refusal && (!longest || refusal->Lasted() > longest->Lasted())) {
        longest = std::move(refusal);
      }
    }
    if (longest) refusals.push_back(*std::move(longest));
  }
  return refusals;
}

Clock::Time LaneMaker::DueBy(Clock::Time latest) const {
  Clock::Time due = latest;
  for (const Dialling& dialling : dials_) {
    if (dialling.lanes.empty()) due = std::min(due, dialling.again_at);
    for (const OutgoingLane& lane : dialling.lanes) {
      due = std::min(due, lane.due().value_or(due));
    }
  }
  return due;
}

// Opens all lanes at once.
void LaneMaker::Begin(Dialling& dialling, Clock::Time now) {
  Peer& peer = at(dialling.peer);
  dialling.again_at = now + kLookEvery;
  if (peer.lanes == 0) {
    dialling.trouble = "its address is not known yet";
    return;
  }
  if (FindWays(dialling.peer).empty()) {
    dialling.trouble = StrCat("expected an IPv", args_.options.ip_version,
                              " address; it has to connect to this rank");
    return;
  }
  ++peer.dials;
  for (int lane = 0; lane < peer.lanes; ++lane) {
    dialling.lanes.emplace_back(LaneTo(dialling.peer, lane),
                                RouteOfLane(peer.ways, lane), now);
  }
}

OutgoingLane::Args LaneMaker::LaneTo(int peer, int lane) const {
  OutgoingLane::Args out;
  out.secret = args_.secret;
  out.buffer_bytes = args_.options.socket_buffer_bytes;
  out.reachable = at(peer).on_this_host;
  out.hello.from = static_cast<std::uint32_t>(args_.rank);
  out.hello.to = static_cast<std::uint32_t>(peer);
  out.hello.lane = static_cast<std::uint32_t>(lane);
  out.hello.lanes = static_cast<std::uint32_t>(at(peer).lanes);
  out.hello.dial = at(peer).dials;
  return out;
}

void LaneMaker::BeginAgain(Dialling& dialling, const std::string& why,
                           Clock::Time now) {
  dialling.lanes.clear();
  dialling.answer = HelloReader();
  dialling.trouble = why;
  dialling.again_at = now + kBackoff;
}

Status LaneMaker::WithoutDescriptors(int peer) const {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return Status(StatusCode::kResourceExhausted,
                StrCat("rank ", args_.rank, " needs ", at(peer).lanes,
                       " file descriptors for its link to rank ", peer, " (",
                       at(peer).address, "), and the ", limit.rlim_cur,
                       " that it may open are in use: raise ulimit -n",
                       at(peer).lanes > 2 ? ", or set connections=1" : ""));
}

Status LaneMaker::StartAttempts(Clock::Time now) {
  for (Dialling& dialling : dials_) {
    if (dialling.lanes.empty() && now >= dialling.again_at) {
      Begin(dialling, now);
    }
    for (OutgoingLane& lane : dialling.lanes) {
      const Status started = lane.Start(now);
      if (started.ok()) continue;
      if (started.code() != StatusCode::kResourceExhausted) return started;
      if (dialling.may_wait) {
        BeginAgain(dialling, started.message(), now);
        break;
      }
      // A stranger may hold the descriptor that the attempt lacks.
      if (!incoming_.DropOldestStranger()) {
        return WithoutDescriptors(dialling.peer);
      }
    }
  }
  return Status();
}

std::vector<pollfd> LaneMaker::Descriptors(Clock::Time now) {
  std::vector<Interest> interests;
  return Gather(now, &interests);
}

// The descriptors to look at, in the order of the interests; the listeners come
// last.
std::vector<pollfd> LaneMaker::Gather(Clock::Time now,
                                      std::vector<Interest>* interests) {
  std::vector<pollfd> wanted;
  for (Dialling& dialling : dials_) {
    for (OutgoingLane& lane : dialling.lanes) {
      std::vector<OutgoingLane::Interest> of_lane;
      lane.AddInterests(&of_lane);
      for (const OutgoingLane::Interest& interest : of_lane) {
        wanted.push_back({interest.fd, interest.events, 0});
        interests->push_back({&dialling, false, &lane, interest.attempt});
      }
      if (!lane.connected()) continue;
      wanted.push_back({lane.socket().fd(), POLLIN, 0});
      interests->push_back({&dialling, false, nullptr, 0});
    }
  }
  for (const int fd : incoming_.Descriptors()) {
    wanted.push_back({fd, POLLIN, 0});
    interests->push_back({});
  }
  for (const int fd : incoming_.LaneDescriptors()) {
    wanted.push_back({fd, POLLIN, 0});
    interests->push_back({nullptr, true, nullptr, 0});
  }
  door_shut_ = false;
  for (const Socket& listener : *args_.listeners) {
    wanted.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
    door_shut_ |= wanted.back().fd < 0;
  }
  return wanted;
}

Status LaneMaker::Handle(const std::vector<pollfd>& ready,
                         const std::vector<Interest>& interests,
                         Clock::Time now, bool* moved) {
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].revents == 0) continue;
    *moved = true;
    if (i >= interests.size()) {
      door_.AcceptSome((*args_.listeners)[i - interests.size()], now,
                       &incoming_);
      continue;
    }
    const Interest& interest = interests[i];
    if (interest.is_lane) {
      incoming_.DropLanesWith(ready[i].fd);
    } else if (interest.dialling == nullptr) {
      GF_RETURN_IF_ERROR(incoming_.OnReady(ready[i].fd));
    } else if (interest.dialling->lanes.empty()) {
      continue;  // They are to be opened again.
    } else if (interest.lane == nullptr) {
      ReadAnswer(*interest.dialling, ready[i].fd, now);
    } else {
      GF_RETURN_IF_ERROR(interest.lane->OnReady(interest.attempt, now));
    }
  }
  return Status();
}

// A connected lane is ready. The peer says on the first one that it keeps all,
// or has closed one: perhaps it prefers its own, or has taken this rank for a
// stranger.
void LaneMaker::ReadAnswer(Dialling& dialling, int fd, Clock::Time now) {
  const OutgoingLane& first = dialling.lanes.front();
  if (dialling.accepted) return;
  if (!first.connected() || first.socket().fd() != fd) {
    // A peer that has kept all may send on the others before its answer on the
    // first one arrives here.
    for (const OutgoingLane& lane : dialling.lanes) {
      if (lane.connected() && lane.socket().fd() == fd &&
          HasEnded(lane.socket())) {
        return BeginAgain(dialling, "it did not keep a connection", now);
      }
    }
    return;
  }
  const HelloReader::State state = dialling.answer.Read(first.socket());
  if (state == HelloReader::State::kWaiting) return;
  if (state == HelloReader::State::kClosed) {
    return BeginAgain(dialling, "it did not keep the connections", now);
  }
  const Result<LaneHello> answer = dialling.answer.Take();
  dialling.accepted =
      answer.ok() && answer.value().kind == LaneHello::Kind::kAccept &&
      IsProven(answer.value(), args_.secret, first.nonce()) &&
      std::all_of(dialling.lanes.begin(), dialling.lanes.end(),
                  [](const OutgoingLane& lane) { return lane.connected(); });
  if (!dialling.accepted) BeginAgain(dialling, "it sent garbage", now);
}

// A higher rank has decided to keep its lanes. A lower one lets this rank
// decide.
Status LaneMaker::KeepIncoming() {
  for (int peer = incoming_.FindComplete(); peer >= 0;
       peer = incoming_.FindComplete()) {
    const Dialling* const mine = FindDialling(peer);
    const bool decided =
        peer < args_.rank && mine != nullptr &&
        std::any_of(mine->lanes.begin(), mine->lanes.end(),
                    [](const OutgoingLane& lane) { return lane.connected(); });
    if (decided || !incoming_.Accept(peer).ok()) {
      incoming_.Expect(peer, at(peer).lanes);  // Drops them.
      continue;
    }
    GF_RETURN_IF_ERROR(Keep(peer, incoming_.TakeLanes(peer)));
  }
  return Status();
}

Status LaneMaker::KeepOutgoing() {
  for (auto next = dials_.begin(); next != dials_.end();) {
    Dialling& dialling = *next++;  // Keep() ends it.
    if (!dialling.accepted) continue;
    std::vector<Socket> lanes;
    for (OutgoingLane& lane : dialling.lanes) {
      lanes.push_back(lane.TakeSocket());
    }
    GF_RETURN_IF_ERROR(Keep(dialling.peer, std::move(lanes)));
  }
  return Status();
}

Status LaneMaker::Keep(int peer, std::vector<Socket> lanes) {
  StopDialling(peer);
  incoming_.Expect(peer, 0);
  for (const Socket& lane : lanes) {
    GF_RETURN_IF_ERROR(SetCongestion(lane, args_.options.Own(kTcpCongestion)));
  }
  return args_.sink->OnLanes(peer, std::move(lanes));
}

Result<bool> LaneMaker::Round(Clock::Time now, int timeout_ms) {
  incoming_.DropTheSilent();
  bool moved = false;
  GF_RETURN_IF_ERROR(StartAttempts(now));
  std::vector<Interest> interests;
  std::vector<pollfd> ready = Gather(now, &interests);
  const int found = ::poll(ready.data(), ready.size(), timeout_ms);
  if (found > 0) GF_RETURN_IF_ERROR(Handle(ready, interests, now, &moved));
  if (found < 0 && errno != EINTR) {
    return SocketError(StatusCode::kInternal, "poll", errno);
  }
  GF_RETURN_IF_ERROR(KeepIncoming());
  GF_RETURN_IF_ERROR(KeepOutgoing());
  return moved;
}

Result<std::unique_ptr<Link>> LinkOnLanes(int peer, std::vector<Socket> lanes,
                                          const ConnectArgs& job,
                                          std::shared_ptr<IoThreads> io) {
  TcpLinkArgs link;
  link.peer = peer;
  link.poller = job.poller;
  link.events = job.events;
  link.io = std::move(io);
  link.lanes = std::move(lanes);
  link.address = PeerAddress(link.lanes[0]).ToString();
  Result<std::unique_ptr<TcpLink>> made = TcpLink::Create(std::move(link));
  if (!made.ok()) return made.status();
  return std::unique_ptr<Link>(std::move(made).value());
}

}  // namespace gradientflow
