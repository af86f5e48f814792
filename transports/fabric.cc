#include "transports/fabric.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gradientflow/base/str_cat.h"

// What becomes of a message, a link and a rank.
//
//   Send()      hands the message to a lane of the peer's link, or keeps it and
//               asks for the link
//   OnLink()    the link is there, whichever side asked: messages leave
//   Recv(), OnHeader(), OnMessage()   the matcher's (matcher.cc)
//   Poll()      polls the links and runs the Dones that are due
//
//   Tick()      sends heartbeats; a silent peer fails the job
//   OnDown()    a link broke. The peer becomes the suspect for a moment, since
//               a kAbort of another rank may tell who was the first to fail
//   Fail()      the verdict: the first one counts
//   TearDown()  sends kAbort with the verdict, closes the links, fails all
//               pending operations
//   Leave()     the way out in good order: ends what was announced, then kBye
//               to all, and theirs back
//
// A peer whose link was asked for must answer within the heartbeat time-out.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// If no socket carries data, one poll in this many looks at the descriptors.
constexpr std::uint64_t kPollsPerGlance = 64;
// A peer that goes down may be a victim of another failure. Its own last
// message, or that of another rank, says who began. This is how long to wait
// for it.
constexpr milliseconds kVerdictPatience(150);
// The verdict on a rank that has died reaches all ranks within a second, link
// by link. If none has come, a rank that accepts no link has left in good
// order. (It has refused for half a second by now.)
constexpr milliseconds kNewsPatience(500);
constexpr milliseconds kAbortFlush(100);
// More queued heartbeats would say nothing that the first does not say.
constexpr std::size_t kMostBeatsQueued = 4;

}  // namespace

Fabric::Fabric(int rank, int size, const Clock& clock,
               std::unique_ptr<Poller> poller, const FabricOptions& options)
    : rank_(rank),
      size_(size),
      clock_(clock),
      poller_(std::move(poller)),
      options_(options),
      early_(options.early_bytes, size - 1),
      liveness_(clock, size, options.heartbeat_timeout) {
  const MatcherArgs args{rank,    &verdict_, &finished_, &held_memory_,
                         &early_, &ready_,   &receives_};
  for (int r = 0; r < size; ++r) {
    peers_.push_back(std::make_unique<Peer>(args, r));
  }
}

Fabric::~Fabric() {
  Fail(Status(StatusCode::kAborted, "the session was closed"));
  // Peers get no kAbort from here; Leave() was the place for a good-bye.
  torn_down_ = true;
  source_.reset();
  links_.Close();
  TearDown();
  ready_.Poll();
}

void Fabric::Connect(std::vector<std::unique_ptr<Link>> links,
                     std::unique_ptr<LinkSource> source) {
  source_ = std::move(source);
  for (int r = 0; r < size_; ++r) {
    liveness_.Heard(r);
    if (links[r] != nullptr) Add(r, std::move(links[r]));
  }
}

void Fabric::Add(int peer, std::unique_ptr<Link> link) {
  liveness_.Heard(peer);
  PeerLink& way = peers_[peer]->way;
  way.Connect(std::move(link));
  links_.Add(way);
}

std::string Fabric::AddressOf(int peer) const {
  if (link(peer) != nullptr) return link(peer)->address();
  return source_ == nullptr ? "not linked" : source_->AddressOf(peer);
}

void Fabric::LineMeasured(int mbps) {
  links_.ForEachUp([=](Link& link) { link.LineMeasured(mbps); });
}

std::string Fabric::NameOf(int peer) const {
  return StrCat("rank ", peer, " (", AddressOf(peer), ")");
}

void Fabric::AskForLink(int peer) {
  PeerLink& way = peers_[peer]->way;
  if (way.link() != nullptr || way.down() || way.asked() || peer == rank_) {
    return;
  }
  if (source_ == nullptr) {
    Fail(Status(StatusCode::kInternal,
                StrCat("rank ", rank_, " has no link to rank ", peer,
                       ", nor a way to make one")));
    return;
  }
  way.SetAsked();
  liveness_.Heard(peer);
  source_->Dial(peer);
}

void Fabric::AskForAwaited() {
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = *peers_[r];
    if (peer.way.link() != nullptr || peer.way.asked()) continue;
    if (peer.matcher.HasPosted()) AskForLink(r);
  }
}

void Fabric::OnLink(int peer, std::unique_ptr<Link> link) {
  Peer& to = *peers_[peer];
  if (torn_down_ || to.way.link() != nullptr) return;
  // The peer refused this rank's attempt, but was not gone.
  if (to.way.down()) --departed_;
  to.way.SetDown(false);
  if (liveness_.Acquit(peer)) {
    for (int r = 0; r < size_ && !leaving_; ++r) {
      if (IsNeeded(r)) FailIfDeparted(r);
    }
  }
  to.left = false;
  Add(peer, std::move(link));
  if (said_bye_) to.way.Say(MessageKind::kBye, "");
}

void Fabric::Send(int peer, MessageId id, ConstBufferView src, Stamp stamp,
                  Done done) {
  if (!verdict_.ok()) {
    ready_.Add(done, 0, status());
    return;
  }
  const std::uint64_t slot = sends_.Add(peer, id, src, stamp, done);
  Peer& to = *peers_[peer];
  Link* const link = to.way.link();
  if (to.way.down()) {
    FailIfDeparted(peer);
    // A peer that was never linked may turn up, though it has refused this
    // rank.
    if (link != nullptr) return;
  }
  const OutMessage message =
      to.credit.Spend(src.bytes)
          ? sends_.MessageOf(slot, MessageKind::kData, id)
          : sends_.Announce(slot);
  if (link != nullptr) {
    link->Send(PeerLink::LaneOf(*link, id.tag, src.bytes), message);
  } else {
    AskForLink(peer);
    to.way.Keep(message);
  }
}

void Fabric::Recv(int peer, MessageId id, BufferView dst,
                  std::uint64_t signature, Done done) {
  if (!verdict_.ok()) {
    ready_.Add(done, 0, status());
    return;
  }
  Peer& from = *peers_[peer];
  const bool over = from.matcher.Post(id, dst, signature, done);
  if (!over && from.way.down()) FailIfDeparted(peer);
}

void Fabric::Tell(int peer, MessageId id, std::uint64_t number) {
  Peer& to = *peers_[peer];
  if (!verdict_.ok() || peer == rank_ || to.way.down() || to.left) return;
  to.way.Tell(id, number);
}

std::optional<std::uint64_t> Fabric::Told(int peer, MessageId id) const {
  return peers_[peer]->matcher.Told(id);
}

bool Fabric::HasMessage(int peer, MessageId id) const {
  return peers_[peer]->matcher.HasMessage(id);
}

void Fabric::CallDone(GroupId group, int series, std::uint64_t call) {
  finished_.Finish(group, series, call);
  for (const auto& peer : peers_) peer->matcher.CheckFinished();
}

void Fabric::CloseGroup(GroupId group) {
  finished_.Forget(group);
  for (const auto& peer : peers_) peer->matcher.CloseGroup(group);
}

Result<LinkEvents::Landing> Fabric::OnHeader(int peer, int /*lane*/,
                                             const Header& header) {
  Peer& from = *peers_[peer];
  if (!IsControl(header.kind)) return from.matcher.Land(header);
  liveness_.Heard(peer);
  from.control.resize(header.payload_bytes);
  return Landing{from.control.data(), false};
}

void Fabric::OnMessage(int peer, int /*lane*/, const Header& header) {
  if (IsControl(header.kind)) return OnControl(peer, header);
  peers_[peer]->matcher.Arrive(header);
}

void Fabric::OnControl(int peer, const Header& header) {
  Peer& from = *peers_[peer];
  std::string text(reinterpret_cast<const char*>(from.control.data()),
                   from.control.size());
  switch (header.kind) {
    case MessageKind::kPing:
      from.way.Say(MessageKind::kPong, progress_);
      break;
    case MessageKind::kPong:
      from.progress = std::move(text);
      break;
    case MessageKind::kAbort:
      Fail(Status(header.tag > 0 && header.tag <= kMaxStatusCode
                      ? static_cast<StatusCode>(header.tag)
                      : StatusCode::kAborted,
                  std::move(text)));
      break;
    case MessageKind::kBye:
      if (!leaving_ && !from.left) from.way.Say(MessageKind::kBye, "");
      from.left = true;
      break;
    case MessageKind::kClear:
    case MessageKind::kDecline:
      OnAnswer(peer, header);
      break;
    case MessageKind::kCredit:
      OnCredit(peer, header.tag);
      break;
    case MessageKind::kRail:
      Fail(Status(StatusCode::kDataLoss,
                  StrCat(NameOf(peer), " sets up RDMA, which rank ", rank_,
                         " has not offered")));
      break;
    case MessageKind::kData:
    case MessageKind::kAnnounce:
    case MessageKind::kPayload:
      break;
  }
}

// The peer calls for a message that this rank has announced, or declines it.
void Fabric::OnAnswer(int peer, const Header& header) {
  const std::uint64_t slot = header.signature;
  if (!sends_.Answered(peer, slot)) {
    return Fail(Status(
        StatusCode::kDataLoss,
        StrCat(NameOf(peer), " answers to message ", slot,
               ", expected one that rank ", rank_, " has announced to it")));
  }
  if (header.kind == MessageKind::kDecline) return sends_.End(slot);
  Link& link = *peers_[peer]->way.link();
  const OutMessage message =
      sends_.MessageOf(slot, MessageKind::kPayload, {header.tag, header.group});
  link.Send(PeerLink::LaneOf(link, header.tag, message.payload.bytes), message);
}

void Fabric::OnCredit(int peer, std::uint64_t bytes) {
  CreditToSend& credit = peers_[peer]->credit;
  if (credit.Add(bytes, options_.early_bytes)) return;
  Fail(Status(StatusCode::kDataLoss,
              StrCat(NameOf(peer), " gives rank ", rank_, " credit for ", bytes,
                     " bytes on top of ", credit.left(), ", expected at most ",
                     options_.early_bytes, " together")));
}

bool Fabric::Poll() {
  bool moved = ready_.Poll();
  if (!torn_down_ && verdict_.ok()) {
    links_.ForEachUp([&](Link& link) { moved |= link.Poll(); });
    if (source_ != nullptr) moved |= source_->Poll();
    // Shared-memory links have been polled above. Their descriptors only tell
    // that a peer is gone, and that can wait for some rounds.
    if (!receives_.Look(&moved) &&
        (links_.sockets_carry_data() || ++polls_ % kPollsPerGlance == 0)) {
      moved |= poller_->Poll(std::chrono::nanoseconds(0));
    }
    if (liveness_.suspects() && liveness_.IsConvinced()) {
      Fail(liveness_.suspicion());
    }
  }
  if (!torn_down_ && !verdict_.ok()) {
    SayWhy();
    TearDown();
  }
  moved |= ready_.Poll();
  return moved;
}

void Fabric::Wait(std::chrono::nanoseconds timeout) {
  if (!ready_.empty()) return;
  if (!verdict_.ok()) {
    // No peer wakes this rank any more. A device that still uses memory may end
    // at any time.
    poller_->Poll(std::min<std::chrono::nanoseconds>(
        timeout, std::chrono::microseconds(50)));
    return;
  }
  if (source_ != nullptr) timeout = std::min(timeout, source_->Patience());
  if (liveness_.suspects()) {
    timeout = std::min<std::chrono::nanoseconds>(timeout, milliseconds(5));
  }
  bool may_sleep = true;
  links_.ForEachUp([&](Link& link) { may_sleep &= link.PrepareToSleep(); });
  if (may_sleep) poller_->Poll(timeout);
  links_.ForEachUp([](Link& link) { link.WakeUp(); });
}

void Fabric::Tick(bool waiting) {
  if (!verdict_.ok() || size_ == 1) return;
  // A rank that seldom polls should learn of a death soon, too, and so should
  // one that looks for a single message.
  links_.ForEachUp([](Link& link) { link.WatchAll(); });
  poller_->Poll(std::chrono::nanoseconds(0));
  if (liveness_.Tick()) SendBeats();
  if (source_ != nullptr) AskForAwaited();
  for (int r = 0; r < size_; ++r) {
    const Peer& peer = *peers_[r];
    if (peer.way.down() || (link(r) == nullptr && !peer.way.asked())) continue;
    if (link(r) != nullptr) liveness_.CountBeats(r, link(r)->beats());
    if (!waiting || peer.left || !liveness_.IsSilent(r)) continue;
    return Fail(Silent(r));
  }
}

Status Fabric::Silent(int peer) const {
  std::string what = ": its process is stopped or cut off";
  if (link(peer) == nullptr) {
    const std::string trouble = source_->TroubleWith(peer);
    what = StrCat(", and there is no link to it",
                  trouble.empty() ? "" : ": " + trouble);
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(NameOf(peer), " has been silent for ",
                       Seconds(liveness_.SilenceOf(peer)), " s", what,
                       "; rank ", rank_, " was at ", progress_));
}

void Fabric::SendBeats() {
  for (const auto& peer : peers_) {
    if (!peer->way.up() || peer->left) continue;
    peer->way.link()->Beat();
    if (peer->way.control_queued() < kMostBeatsQueued) {
      peer->way.Say(MessageKind::kPong, progress_);
    }
  }
}

void Fabric::AskProgress() {
  for (const auto& peer : peers_) {
    if (!peer->left) peer->way.Say(MessageKind::kPing, "");
  }
}

// Returns whether a receive or a send waits for the peer.
bool Fabric::IsNeeded(int peer) const {
  return peers_[peer]->matcher.HasPosted() || sends_.HasAny(peer);
}

std::vector<int> Fabric::AwaitedPeers() const {
  std::vector<int> awaited;
  for (int r = 0; r < size_; ++r) {
    if (IsNeeded(r)) awaited.push_back(r);
  }
  return awaited;
}

void Fabric::OnDown(int peer, const Status& why) {
  peers_[peer]->way.SetDown(true);
  if (leaving_) return;
  if (peers_[peer]->left) {
    ++departed_;
    if (IsNeeded(peer)) FailIfDeparted(peer);
  } else {
    liveness_.Suspect(peer, why, kVerdictPatience);
  }
}

// The peer was never linked. If no other rank reports its death, it has left.
void Fabric::OnGone(int peer, const Status& why) {
  (void)why;
  Peer& gone = *peers_[peer];
  if (gone.way.link() != nullptr || gone.way.down()) return;
  gone.way.SetDown(true);
  gone.left = true;
  ++departed_;
  if (!leaving_ && IsNeeded(peer)) FailIfDeparted(peer);
}

Status Fabric::HasLeft(int peer) const {
  return Status(StatusCode::kUnavailable,
                StrCat(NameOf(peer), " has left the job, but rank ", rank_,
                       " still needs it"));
}

// A peer that said good-bye and closed is an error only if it is still needed.
void Fabric::FailIfDeparted(int peer) {
  if (HasDeparted(peer)) FailDeparted(peer, HasLeft(peer));
}

void Fabric::FailDeparted(int peer, const Status& why) {
  if (link(peer) != nullptr) return Fail(why);
  liveness_.Suspect(peer, why, kNewsPatience);
}

void Fabric::Fail(const Status& why) { verdict_.Fail(why); }

// Tells the peers why the job ends, and drops the links.
void Fabric::SayWhy() {
  torn_down_ = true;
  for (const auto& peer : peers_) {
    peer->way.Say(MessageKind::kAbort, status().message(),
                  static_cast<Tag>(status().code()));
  }
  const Clock::Time give_up = clock_.Now() + kAbortFlush;
  for (bool queued = true; queued && clock_.Now() < give_up;) {
    links_.ForEachUp([](Link& link) { link.Poll(); });
    queued = links_.HasQueued();
    if (queued) poller_->Poll(milliseconds(1));
  }
  links_.Close();
  for (const auto& peer : peers_) peer->way.SetDown(true);
  source_.reset();  // Ranks that dial this one learn that it is gone.
}

// No link touches a lent buffer any more.
void Fabric::TearDown() {
  for (const auto& peer : peers_) {
    peer->matcher.FailAll(status());
    peer->way.DropKept();
  }
  sends_.FailAll(status(), &ready_);
}

// Returns whether a peer has yet to answer an announcement. Peers that have
// said good-bye count, too: they stay, and answer, until this rank has said it.
bool Fabric::AwaitsAnswers() const {
  for (int r = 0; r < size_; ++r) {
    if (!peers_[r]->way.down() && sends_.AwaitsAnswer(r)) return true;
  }
  return false;
}

void Fabric::Leave(std::chrono::nanoseconds patience) {
  if (!verdict_.ok()) return;
  leaving_ = true;
  const Clock::Time give_up = clock_.Now() + patience;
  // This rank announces nothing after its good-bye, so what it has announced
  // is answered first.
  for (const auto& peer : peers_) peer->matcher.DeclineAll();
  while (AwaitsAnswers() && verdict_.ok() && clock_.Now() < give_up) {
    if (!Poll()) Wait(milliseconds(20));
  }
  if (!verdict_.ok()) return;
  said_bye_ = true;
  for (const auto& peer : peers_) peer->way.Say(MessageKind::kBye, "");
  for (;;) {
    Poll();
    bool waiting = links_.HasQueued();
    for (const auto& peer : peers_) {
      const PeerLink& way = peer->way;
      waiting |= way.up() && !peer->left;
      waiting |= way.asked() && !way.down() && way.keeps_any();
    }
    if (!waiting || !verdict_.ok() || clock_.Now() >= give_up) return;
    Wait(milliseconds(20));
  }
}

}  // namespace gradientflow
