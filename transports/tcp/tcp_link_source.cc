#include "transports/tcp/tcp_link_source.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/ways.h"

// How a link is made while the job runs:
//
//   Dial()          this rank wants one: Begin() the lanes
//   OnEvents()      the poller says that a socket is ready
//   Poll()          it is time for an attempt, or to drop silent strangers
//   Round()         what both come to: looks at all sockets once
//   KeepIncoming()  all lanes of a peer have arrived
//   KeepOutgoing()  all lanes to a peer are there, and are kept
//   MakeLink()      hands the link to the fabric
namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// After lanes that a higher rank has not kept: it has its own under way.
constexpr milliseconds kBackoff(50);
// The longest time between two looks at what is under way.
constexpr milliseconds kLookEvery(100);

}  // namespace

Result<std::unique_ptr<LinkSource>> TcpLinkSource::Create(Args args) {
  auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  args.interfaces = std::move(interfaces).value();
  Result<ReadySet> ready = ReadySet::Create();
  if (!ready.ok()) return ready.status();
  Poller* const poller = args.job.poller;
  std::unique_ptr<TcpLinkSource> source(
      new TcpLinkSource(std::move(args), std::move(ready).value()));
  GF_RETURN_IF_ERROR(
      poller->Add(source->ready_.fd(), EPOLLIN, source.get(), 0));
  std::vector<Interest> interests;
  GF_RETURN_IF_ERROR(source->ready_.Watch(
      source->Gather(source->job_.clock->Now(), &interests)));
  return std::unique_ptr<LinkSource>(std::move(source));
}

TcpLinkSource::TcpLinkSource(Args args, ReadySet ready)
    : options_(std::move(args.options)),
      job_(std::move(args.job)),
      sink_(args.sink),
      listeners_(std::move(args.listeners)),
      rails_(args.rails),
      interfaces_(std::move(args.interfaces)),
      ready_(std::move(ready)),
      incoming_({job_.rank, job_.secret,
                 std::vector<int>(static_cast<std::size_t>(job_.size))},
                *job_.clock),
      peers_(static_cast<std::size_t>(job_.size)) {
  for (int r = 0; r < job_.size; ++r) {
    at(r).address = job_.addresses[static_cast<std::size_t>(r)];
    at(r).linked = r == job_.rank || !at(r).address.empty();
  }
}

TcpLinkSource::~TcpLinkSource() { job_.poller->Remove(ready_.fd()); }

Status TcpLinkSource::Learn(const std::vector<std::string>& addresses) {
  if (addresses.size() != peers_.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected the addresses of ", peers_.size(),
                         " ranks, seen ", addresses.size()));
  }
  for (int r = 0; r < job_.size; ++r) {
    Peer& peer = at(r);
    const std::string& address = addresses[static_cast<std::size_t>(r)];
    if (!peer.address.empty() || address.empty()) continue;
    const auto published = PublishedBy(r, address);
    if (!published.ok()) return published.status();
    peer.address = address;
    if (peer.linked) continue;
    peer.lanes =
        LanesBetween(options_, std::min(rails_, RailsIn(published.value())));
    incoming_.Expect(r, peer.lanes);
  }
  due_ = Clock::Time{};
  return Status();
}

void TcpLinkSource::Dial(int peer) {
  if (at(peer).linked || std::exchange(at(peer).wanted, true)) return;
  dials_.emplace_back();
  dials_.back().peer = peer;
  due_ = Clock::Time{};
}

std::string TcpLinkSource::AddressOf(int peer) const {
  return at(peer).address.empty() ? "address unknown" : at(peer).address;
}

const TcpLinkSource::Dialling* TcpLinkSource::FindDialling(int peer) const {
  const auto found =
      std::find_if(dials_.begin(), dials_.end(),
                   [peer](const Dialling& d) { return d.peer == peer; });
  return found == dials_.end() ? nullptr : &*found;
}

std::string TcpLinkSource::TroubleWith(int peer) const {
  const Dialling* const dialling = FindDialling(peer);
  if (dialling == nullptr) return "";
  std::string trouble = dialling->trouble;
  for (const OutgoingLane& lane : dialling->lanes) {
    if (!lane.connected() && !lane.trouble().empty()) trouble = lane.trouble();
  }
  return trouble + door_.Trouble();
}

std::chrono::nanoseconds TcpLinkSource::Patience() const {
  if (!busy()) return std::chrono::hours(1);
  return std::max(due_ - job_.clock->Now(), Clock::Time{});
}

bool TcpLinkSource::Poll() {
  if (!busy() || failed_) return false;
  const Clock::Time now = job_.clock->Now();
  return now >= due_ && Round(now);
}

bool TcpLinkSource::OnEvents(std::uint64_t cookie, std::uint32_t events) {
  static_cast<void>(cookie);
  static_cast<void>(events);
  return !failed_ && Round(job_.clock->Now());
}

// Opens all lanes at once.
Status TcpLinkSource::Begin(Dialling& dialling, Clock::Time now) {
  const Peer& peer = at(dialling.peer);
  dialling.again_at = now + kLookEvery;
  if (peer.lanes == 0) {
    dialling.trouble = "its address is not known yet";
    return Status();
  }
  auto published = PublishedBy(dialling.peer, peer.address);
  if (!published.ok()) return published.status();
  const std::vector<RatedAddress> ways =
      WaysTo(std::move(published).value(), options_, interfaces_);
  if (ways.empty()) {
    dialling.trouble = StrCat("expected an IPv", options_.ip_version,
                              " address; it has to connect to this rank");
    return Status();
  }
  const bool reachable = IsOnThisHost(ways, listeners_);
  for (int lane = 0; lane < peer.lanes; ++lane) {
    dialling.lanes.emplace_back(LaneTo(dialling.peer, lane, reachable),
                                RouteOfLane(ways, lane), now);
  }
  return Status();
}

OutgoingLane::Args TcpLinkSource::LaneTo(int peer, int lane,
                                         bool reachable) const {
  OutgoingLane::Args out;
  out.secret = job_.secret;
  out.buffer_bytes = options_.socket_buffer_bytes;
  out.reachable = reachable;
  out.hello.from = static_cast<std::uint32_t>(job_.rank);
  out.hello.to = static_cast<std::uint32_t>(peer);
  out.hello.lane = static_cast<std::uint32_t>(lane);
  out.hello.lanes = static_cast<std::uint32_t>(at(peer).lanes);
  return out;
}

void TcpLinkSource::BeginAgain(Dialling& dialling, const std::string& why,
                               Clock::Time now) {
  dialling.lanes.clear();
  dialling.answer = HelloReader();
  dialling.trouble = why;
  dialling.again_at = now + kBackoff;
}

Status TcpLinkSource::WithoutDescriptors(int peer) const {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return Status(StatusCode::kResourceExhausted,
                StrCat("rank ", job_.rank, " needs ", at(peer).lanes,
                       " file descriptors for its link to rank ", peer, " (",
                       at(peer).address, "), and the ", limit.rlim_cur,
                       " that it may open are in use: raise ulimit -n",
                       at(peer).lanes > 2 ? ", or set connections=1" : ""));
}

Status TcpLinkSource::StartAttempts(Clock::Time now) {
  for (Dialling& dialling : dials_) {
    if (dialling.lanes.empty() && now >= dialling.again_at) {
      GF_RETURN_IF_ERROR(Begin(dialling, now));
    }
    for (OutgoingLane& lane : dialling.lanes) {
      const Status started = lane.Start(now);
      if (started.ok()) continue;
      if (started.code() != StatusCode::kResourceExhausted) return started;
      // A stranger may hold the descriptor that the attempt lacks.
      if (!incoming_.DropOldestStranger()) {
        return WithoutDescriptors(dialling.peer);
      }
    }
  }
  return Status();
}

// The descriptors to look at, in the order of the interests; the listeners come
// last.
std::vector<pollfd> TcpLinkSource::Gather(Clock::Time now,
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
  for (const Socket& listener : listeners_) {
    wanted.push_back({door_.DescriptorOf(listener, now), POLLIN, 0});
    if (wanted.back().fd >= 0) continue;
    door_shut_ = true;
    ready_.Forget(listener.fd());
  }
  return wanted;
}

// An error of a lane ends the job: the settings of two ranks differ.
Status TcpLinkSource::Handle(const std::vector<pollfd>& ready,
                             const std::vector<Interest>& interests,
                             Clock::Time now, bool* moved) {
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].revents == 0) continue;
    *moved = true;
    if (i >= interests.size()) {
      door_.AcceptSome(listeners_[i - interests.size()], now, &incoming_);
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
void TcpLinkSource::ReadAnswer(Dialling& dialling, int fd, Clock::Time now) {
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
  dialling.accepted = answer.ok() &&
                      answer.value().step == LaneHello::Step::kAccept &&
                      IsProven(answer.value(), job_.secret, first.nonce());
  if (!dialling.accepted) BeginAgain(dialling, "it sent garbage", now);
}

// A higher rank has decided to keep its lanes. A lower one lets this rank
// decide.
Status TcpLinkSource::KeepIncoming() {
  for (int peer = incoming_.FindComplete(); peer >= 0;
       peer = incoming_.FindComplete()) {
    const Dialling* const mine = FindDialling(peer);
    const bool decided =
        peer < job_.rank && mine != nullptr &&
        std::any_of(mine->lanes.begin(), mine->lanes.end(),
                    [](const OutgoingLane& lane) { return lane.connected(); });
    if (decided || !incoming_.Accept(peer).ok()) {
      incoming_.Expect(peer, at(peer).lanes);  // Drops them.
      continue;
    }
    GF_RETURN_IF_ERROR(MakeLink(peer, incoming_.TakeLanes(peer)));
  }
  return Status();
}

Status TcpLinkSource::KeepOutgoing() {
  for (auto next = dials_.begin(); next != dials_.end();) {
    Dialling& dialling = *next++;  // MakeLink() ends it.
    if (!dialling.accepted) continue;
    std::vector<Socket> lanes;
    for (OutgoingLane& lane : dialling.lanes) {
      lanes.push_back(lane.TakeSocket());
    }
    GF_RETURN_IF_ERROR(MakeLink(dialling.peer, std::move(lanes)));
  }
  return Status();
}

void TcpLinkSource::StopDialling(int peer) {
  dials_.remove_if([peer](const Dialling& d) { return d.peer == peer; });
}

Status TcpLinkSource::MakeLink(int peer, std::vector<Socket> lanes) {
  StopDialling(peer);
  at(peer).linked = true;
  incoming_.Expect(peer, 0);
  for (const Socket& lane : lanes) ready_.Forget(lane.fd());
  TcpLinkArgs link;
  link.peer = peer;
  link.poller = job_.poller;
  link.events = job_.events;
  link.lanes = std::move(lanes);
  link.address = PeerAddress(link.lanes[0]).ToString();
  Result<std::unique_ptr<TcpLink>> made = TcpLink::Create(std::move(link));
  if (!made.ok()) return made.status();
  sink_->OnLink(peer, std::move(made).value());
  return Status();
}

// Lanes of such a peer are welcome all the same: it may be behind a firewall
// that refuses in its place.
void TcpLinkSource::GiveUpOnTheGone() {
  std::vector<std::pair<int, std::string>> gone;
  for (const Dialling& dialling : dials_) {
    for (const OutgoingLane& lane : dialling.lanes) {
      if (!lane.ended()) continue;
      gone.emplace_back(dialling.peer, lane.trouble());
      break;
    }
  }
  for (const auto& [peer, trouble] : gone) {
    StopDialling(peer);
    sink_->OnGone(peer, Status(StatusCode::kUnavailable,
                               StrCat("rank ", peer, " (", at(peer).address,
                                      ") accepts no links: ", trouble)));
  }
}

// Starts what is due, looks at all sockets once, and keeps what is complete.
// Returns whether anything moved.
bool TcpLinkSource::Round(Clock::Time now) {
  incoming_.DropTheSilent();
  bool moved = false;
  std::vector<Interest> interests;
  Status status = StartAttempts(now);
  if (status.ok()) {
    std::vector<pollfd> ready = Gather(now, &interests);
    if (::poll(ready.data(), ready.size(), 0) > 0) {
      status = Handle(ready, interests, now, &moved);
    }
  }
  if (status.ok()) status = KeepIncoming();
  if (status.ok()) status = KeepOutgoing();
  if (status.ok() && !moved) GiveUpOnTheGone();
  interests.clear();
  if (status.ok()) status = ready_.Watch(Gather(now, &interests));
  due_ = now + kLookEvery;
  for (const Dialling& dialling : dials_) {
    if (dialling.lanes.empty()) due_ = std::min(due_, dialling.again_at);
    for (const OutgoingLane& lane : dialling.lanes) {
      due_ = std::min(due_, lane.due().value_or(due_));
    }
  }
  if (!status.ok()) {
    failed_ = true;
    sink_->OnFailed(status);
  }
  return moved;
}

}  // namespace gradientflow
