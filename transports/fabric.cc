#include "transports/fabric.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How messages and their receives find each other.
//
//   Send()      hands the message to a lane of the peer's link
//   OnHeader()  a header has arrived. If a receive is posted for its id, the
//               payload lands in that buffer. Otherwise it is held here.
//   Recv()      posts a receive: takes a held message or calls for an announced
//               one
//   Complete()  both are there: checks length and signature, queues the Done
//   Poll()      polls the links and runs the queued Dones
//
// fabric_early.cc has what a rank may send unasked, and how all else is
// announced and called for; fabric_links.cc has links that come later;
// fabric_life.cc has heartbeats, failures and good-byes.
namespace gradientflow {
namespace {

// If no socket carries data, one poll in this many looks at the descriptors.
constexpr std::uint64_t kPollsPerGlance = 64;

}  // namespace

Fabric::Fabric(int rank, int size, const Clock& clock,
               std::unique_ptr<Poller> poller, const FabricOptions& options)
    : rank_(rank),
      size_(size),
      clock_(clock),
      poller_(std::move(poller)),
      options_(options),
      early_(options.early_bytes, size - 1),
      peers_(static_cast<std::size_t>(size)) {
  for (Peer& peer : peers_) {
    peer.to_send = CreditToSend(early_.share());
    peer.to_receive = CreditToReceive(early_.share());
  }
  last_tick_ = last_beat_ = clock_.Now();
}

Fabric::~Fabric() {
  Fail(Status(StatusCode::kAborted, "the session was closed"));
  // Peers get no kAbort from here; Leave() was the place for a good-bye.
  torn_down_ = true;
  source_.reset();
  for (Peer* peer : linked_) peer->link->Close();
  TearDown();
  ready_.Poll();
}

// With several lanes, lane 0 is left to control messages, which data must not
// delay. The messages of a segment share a lane if the lanes are fixed. Those
// of a name that the receiver numbers share one in any case. Any lane will do
// for a message that its sender has numbered.
int Fabric::LaneOf(Link& link, Tag tag) {
  if (IsNumberedByReceiver(tag)) return link.Link::DataLane(NamedTag(tag));
  return link.DataLane(IsPointToPoint(tag) ? tag : SegmentOf(tag));
}

void Fabric::OnSent(void* self, std::uint64_t slot, std::uint32_t flags,
                    const Status& status) {
  auto& fabric = *static_cast<Fabric*>(self);
  // A send fails because its peer went down. Its Done runs with the verdict on
  // that, in TearDown().
  if (!status.ok()) return;
  const Lent lent = std::exchange(fabric.sends_[slot], Lent{});
  fabric.free_sends_.push_back(slot);
  lent.done(status, flags);
}

void Fabric::Send(int peer, MessageId id, ConstBufferView src, Stamp stamp,
                  Done done) {
  if (!status_.ok()) {
    ready_.Add(done, 0, status_);
    return;
  }
  if (free_sends_.empty()) {
    free_sends_.push_back(sends_.size());
    sends_.emplace_back();
  }
  const std::uint64_t slot = free_sends_.back();
  free_sends_.pop_back();
  sends_[slot] = {done, peer, id, src, stamp, false, {}};
  Peer& to = peers_[peer];
  if (to.down) FailIfDeparted(peer);
  // A peer that was never linked may turn up, though it has refused this rank.
  if (to.down && to.link != nullptr) return;
  MessageKind kind = MessageKind::kData;
  if (!to.to_send.Spend(src.bytes)) {
    kind = MessageKind::kAnnounce;
    sends_[slot].announced = true;
    sends_[slot].announcement = EncodeAnnouncement({src.bytes, slot});
  }
  const OutMessage message = MessageOf(slot, kind, id);
  if (to.link != nullptr) {
    to.link->Send(LaneOf(*to.link, id.tag), message);
  } else {
    AskForLink(peer);
    WaitForLink(peer, message);
  }
}

// The message of a send as a link takes it.
OutMessage Fabric::MessageOf(std::uint64_t slot, MessageKind kind,
                             MessageId id) {
  const Lent& lent = sends_[slot];
  OutMessage message;
  message.header.kind = kind;
  message.header.flags = lent.stamp.flags;
  message.header.signature = lent.stamp.signature;
  message.header.tag = id.tag;
  message.header.group = id.group;
  if (kind == MessageKind::kAnnounce) {
    message.payload = {lent.announcement.data(), kAnnouncementBytes, {}};
  } else {
    message.payload = lent.src;
    message.done = {&Fabric::OnSent, this, slot};
  }
  message.header.payload_bytes = message.payload.bytes;
  return message;
}

void Fabric::Recv(int peer, MessageId id, BufferView dst,
                  std::uint64_t signature, Done done) {
  Peer& from = peers_[peer];
  if (!status_.ok()) {
    ready_.Add(done, 0, status_);
    return;
  }
  if (IsNumberedByReceiver(id.tag)) id = from.arrivals.Receive(id);
  Match& match = from.matches[id];
  if (match.posted) {
    ready_.Add(
        done, 0,
        Status(StatusCode::kInternal, StrCat("tag ", id.tag, " from rank ",
                                             peer, " is already awaited")));
    return;
  }
  match.posted = true;
  match.dst = dst;
  match.signature = signature;
  match.done = done;
  if (match.arrived) {
    Complete(peer, id);
  } else if (from.down) {
    FailIfDeparted(peer);
  } else if (match.announced) {
    CallFor(peer, id);
  }
}

// Whether a message is the one that its receive expects; if not, `why` says how
// they differ.
bool Fabric::Check(int peer, const Match& match, Status* why) const {
  const bool same_call = match.header.signature == match.signature;
  if (same_call && match.header.payload_bytes == match.dst.bytes) return true;
  const Link& link = *peers_[peer].link;
  *why =
      Status(StatusCode::kInvalidArgument,
             StrCat("rank ", peer, " (", link.address(), ") sent ",
                    match.header.payload_bytes, " bytes, rank ", rank_,
                    " expected ", match.dst.bytes,
                    same_call ? ""
                              : ", and of another call: kind, dtype, operation,"
                                " count, step or place in the pool differ",
                    " (tag ", match.header.tag, ")"));
  return false;
}

void Fabric::Tell(int peer, MessageId id, std::uint64_t number) {
  Peer& to = peers_[peer];
  if (!status_.ok() || peer == rank_ || to.down || to.left) return;
  const std::uint64_t cookie = next_control_++;
  ++to.control_queued;
  control_out_.emplace(cookie, ControlOut{{}, peer});
  OutMessage message;
  message.header.kind = MessageKind::kData;
  message.header.tag = id.tag;
  message.header.group = id.group;
  message.header.signature = number;
  message.done = {&Fabric::FreeControl, this, cookie};
  if (to.link == nullptr) return WaitForLink(peer, message);
  to.link->Send(LaneOf(*to.link, id.tag), message);
}

std::optional<std::uint64_t> Fabric::Told(int peer, MessageId id) const {
  const auto found = peers_[peer].matches.find(id);
  if (found == peers_[peer].matches.end() || !found->second.arrived) return {};
  return found->second.header.signature;
}

bool Fabric::HasMessage(int peer, MessageId id) const {
  const Peer& from = peers_[peer];
  if (IsNumberedByReceiver(id.tag)) id = from.arrivals.NextReceive(id);
  const auto found = from.matches.find(id);
  return found != from.matches.end() && !found->second.posted;
}

void Fabric::CallDone(GroupId group, int series, std::uint64_t call) {
  next_calls_[group][static_cast<std::size_t>(series)] = call + 1;
  for (int r = 0; r < size_; ++r) {
    for (const auto& [id, match] : peers_[r].matches) {
      if (!match.posted && IsStale(id)) Fail(StaleMessage(r, match.header));
    }
  }
}

bool Fabric::IsStale(MessageId id) const {
  if (IsPointToPoint(id.tag)) return false;
  const auto calls = next_calls_.find(id.group);
  if (calls == next_calls_.end()) return false;
  return IsEarlierCall(CallOf(id.tag), calls->second[SeriesOf(id.tag)]);
}

void Fabric::CloseGroup(GroupId group) {
  next_calls_.erase(group);
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    for (auto at = peer.matches.begin(); at != peer.matches.end();) {
      const Match& match = at->second;
      if (at->first.group != group || match.posted ||
          (!match.arrived && !match.announced)) {
        ++at;
        continue;
      }
      const MessageId id = at->first;
      Match dropped = std::move(at->second);
      at = peer.matches.erase(at);
      if (IsNumberedByReceiver(id.tag)) peer.arrivals.Receive(id);
      Drop(r, id, &dropped);
    }
  }
}

Status Fabric::StaleMessage(int peer, const Header& header) const {
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("rank ", peer, " (", peers_[peer].link->address(), ") sent ",
             header.payload_bytes, " bytes of collective #", CallOf(header.tag),
             header.group == 0 ? "" : StrCat(" in group ", header.group),
             ", which rank ", rank_,
             " has finished without them: the ranks call different"
             " collectives"));
}

// The id that a message is matched by.
MessageId Fabric::IdOf(const Peer& from, const Header& header) {
  const MessageId id(header.tag, header.group);
  return IsNumberedByReceiver(id.tag) ? from.arrivals.NextArrival(id) : id;
}

// Forgets the numbers of a name if no message and no receive of it is left. A
// message that is arriving still needs its number.
void Fabric::ForgetIfEven(Peer* from, MessageId id) {
  if (!from->arrivals.Even(id)) return;
  if (from->matches.contains(from->arrivals.NextArrival(id))) return;
  from->arrivals.Forget(id);
}

Result<LinkEvents::Landing> Fabric::OnHeader(int peer, int lane,
                                             const Header& header) {
  (void)lane;
  Peer& from = peers_[peer];
  if (IsControl(header.kind)) {
    from.heard = clock_.Now();
    from.control.resize(header.payload_bytes);
    return Landing{from.control.data(), false};
  }
  if (header.kind == MessageKind::kPayload) return LandPayload(peer, header);
  if (header.kind == MessageKind::kData &&
      !from.to_receive.Charge(header.payload_bytes)) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("rank ", peer, " (", from.link->address(), ") sends ",
               header.payload_bytes, " bytes unasked, expected at most ",
               from.to_receive.limit(), " under way (tag ", header.tag, ")"));
  }
  const MessageId id = IdOf(from, header);
  Match& match = from.matches[id];
  if (match.arriving) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", peer, " (", from.link->address(),
                         ") sent tag ", header.tag, " twice"));
  }
  match.header = header;
  if (header.kind == MessageKind::kAnnounce) {
    match.arriving = true;
    return Landing{match.announcement.data(), false};
  }
  if (match.posted) {
    Status why;
    if (!Check(peer, match, &why)) {
      // The link is kept up, so that the peer hears the reason, too.
      if (!IsPointToPoint(header.tag)) {
        Fail(why);
        return Landing{nullptr, true};
      }
    } else {
      match.arriving = true;
      return Landing{match.dst.data, false};
    }
  } else if (IsStale(id)) {
    Fail(StaleMessage(peer, header));
    return Landing{nullptr, true};
  }
  // The length is what the peer claims, so no memory is touched before bytes
  // arrive.
  if (header.payload_bytes > 0) {
    match.held = held_memory_.Take(header.payload_bytes);
    if (match.held == nullptr) {
      return Status(
          StatusCode::kResourceExhausted,
          StrCat("rank ", peer, " (", from.link->address(), ") sends ",
                 header.payload_bytes, " bytes that rank ", rank_,
                 " does not await and cannot hold"));
    }
  }
  match.arriving = true;
  from.held_bytes += header.payload_bytes;
  return Landing{match.held.get(), false};
}

void Fabric::OnMessage(int peer, int lane, const Header& header) {
  (void)lane;
  if (IsControl(header.kind)) return OnControl(peer, header);
  Peer& from = peers_[peer];
  const bool called_for = header.kind == MessageKind::kPayload;
  const MessageId id =
      called_for ? MessageId(header.tag, header.group) : IdOf(from, header);
  if (header.kind == MessageKind::kAnnounce) return OnAnnouncement(peer, id);
  if (IsNumberedByReceiver(id.tag) && !called_for) from.arrivals.Arrived(id);
  Match& match = from.matches[id];
  match.arrived = true;
  if (match.posted) Complete(peer, id);
}

// Hands an arrived message to its receive.
void Fabric::Complete(int peer, MessageId id) {
  Peer& from = peers_[peer];
  auto node = from.matches.extract(id);
  Match& match = node.mapped();
  Status status;
  const bool fits = Check(peer, match, &status);
  if (match.held != nullptr && fits) {
    std::memcpy(match.dst.data, match.held.get(), match.header.payload_bytes);
  }
  ready_.Add(match.done, match.header.flags, status);
  Drop(peer, id, &match);
  if (!fits && !IsPointToPoint(id.tag)) Fail(status);
}

// Gives back what a message that has left `matches` used.
void Fabric::Drop(int peer, MessageId id, Match* match) {
  Peer& from = peers_[peer];
  const std::uint64_t bytes = match->header.payload_bytes;
  if (match->held != nullptr) {
    from.held_bytes -= bytes;
    held_memory_.Give(std::move(match->held), bytes);
  }
  if (match->announced) {
    if (!match->called_for) Decline(peer, *match);
  } else {
    GiveBack(peer, bytes);
  }
  if (!IsNumberedByReceiver(id.tag)) return;
  if (match->announced) from.arrivals.Over(id);
  ForgetIfEven(&from, id);
}

bool Fabric::Poll() {
  bool moved = ready_.Poll();
  if (!torn_down_ && status_.ok()) {
    for (Peer* peer : linked_) {
      if (!peer->down) moved |= peer->link->Poll();
    }
    if (source_ != nullptr) moved |= source_->Poll();
    // Shared-memory links have been polled above. Their descriptors only tell
    // that a peer is gone, and that can wait for some rounds.
    if (sockets_carry_data_ || ++polls_ % kPollsPerGlance == 0) {
      moved |= poller_->Poll(std::chrono::nanoseconds(0));
    }
    if (!suspect_.ok()) DecideDown();
  }
  if (!torn_down_ && !status_.ok()) TearDown();
  moved |= ready_.Poll();
  return moved;
}

void Fabric::Wait(std::chrono::nanoseconds timeout) {
  if (!ready_.empty()) return;
  if (!status_.ok()) {
    // No peer wakes this rank any more. A device that still uses memory may end
    // at any time.
    poller_->Poll(std::min<std::chrono::nanoseconds>(
        timeout, std::chrono::microseconds(50)));
    return;
  }
  if (source_ != nullptr) timeout = std::min(timeout, source_->Patience());
  if (!suspect_.ok())
    timeout = std::min<std::chrono::nanoseconds>(timeout,
                                                 std::chrono::milliseconds(5));
  bool may_sleep = true;
  for (Peer* peer : linked_) {
    if (!peer->down) may_sleep &= peer->link->PrepareToSleep();
  }
  if (may_sleep) poller_->Poll(timeout);
  for (Peer* peer : linked_) {
    if (!peer->down) peer->link->WakeUp();
  }
}

}  // namespace gradientflow
