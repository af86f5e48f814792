#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/fabric.h"

// How a fabric finds out that a peer is gone, and how it ends.
//
//   Tick()      sends heartbeats; a silent peer fails the job
//   OnDown()    a link broke. The peer becomes the suspect for a moment, since
//               a kAbort of another rank may tell who was the first to fail
//   Fail()      the verdict: the first one counts
//   TearDown()  sends kAbort with the verdict, closes the links, fails all
//               pending operations
//   Leave()     the way out in good order: ends what was announced, then kBye
//               to all, and theirs back
namespace gradientflow {
namespace {

using std::chrono::milliseconds;

// A peer that goes down may be a victim of another failure. Its own last
// message, or that of another rank, says who began. This is how long to wait
// for it.
constexpr milliseconds kVerdictPatience(150);
// The verdict on a rank that has died reaches all ranks within a second, link
// by link. If none has come, a rank that accepts no link has left in good
// order. (It has refused for half a second by now.)
constexpr milliseconds kNewsPatience(500);
constexpr milliseconds kAbortFlush(100);
constexpr std::size_t kMostControlQueued = 1024;
// More queued heartbeats would say nothing that the first does not say.
constexpr std::size_t kMostBeatsQueued = 4;

}  // namespace

void Fabric::FreeControl(void* self, std::uint64_t cookie, std::uint32_t,
                         const Status&) {
  auto& fabric = *static_cast<Fabric*>(self);
  const auto sent = fabric.control_out_.find(cookie);
  --fabric.peers_[sent->second.peer].control_queued;
  fabric.control_out_.erase(sent);
}

void Fabric::SendControl(int peer, MessageKind kind, std::string text,
                         Tag tag) {
  Peer& to = peers_[peer];
  // The limit keeps a peer that reads nothing from filling this rank's memory.
  // Queued data does not count, since it says nothing about the control lane.
  if (to.link == nullptr || to.down ||
      to.control_queued >= kMostControlQueued) {
    return;
  }
  text.resize(std::min<std::size_t>(text.size(), kMaxControlBytes));
  const std::uint64_t cookie = next_control_++;
  ++to.control_queued;
  const std::string& kept =
      control_out_.emplace(cookie, ControlOut{std::move(text), peer})
          .first->second.text;
  OutMessage message;
  message.header.kind = kind;
  message.header.tag = tag;
  message.header.payload_bytes = kept.size();
  message.payload = {
      reinterpret_cast<const std::byte*>(kept.data()), kept.size(), {}};
  message.done = {&Fabric::FreeControl, this, cookie};
  to.link->Send(0, message);
}

void Fabric::OnControl(int peer, const Header& header) {
  Peer& from = peers_[peer];
  std::string text(reinterpret_cast<const char*>(from.control.data()),
                   from.control.size());
  switch (header.kind) {
    case MessageKind::kPing:
      SendControl(peer, MessageKind::kPong, progress_);
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
      if (!leaving_ && !from.left) {
        SendControl(peer, MessageKind::kBye, "");
      }
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
      Fail(Status(
          StatusCode::kDataLoss,
          StrCat("rank ", peer, " (", from.link->address(),
                 ") sets up RDMA, which rank ", rank_, " has not offered")));
      break;
    case MessageKind::kData:
    case MessageKind::kAnnounce:
    case MessageKind::kPayload:
      break;
  }
}

void Fabric::OnDown(int peer, const Status& why) {
  Peer& gone = peers_[peer];
  gone.down = true;
  if (leaving_) return;
  if (gone.left) {
    ++departed_;
    if (HasPosted(gone) || HasSends(peer)) FailIfDeparted(peer);
  } else {
    Suspect(peer, why, kVerdictPatience);
  }
}

// The peer was never linked. If no other rank reports its death, it has left.
void Fabric::OnGone(int peer, const Status& why) {
  (void)why;
  Peer& gone = peers_[peer];
  if (gone.link != nullptr || gone.down) return;
  gone.down = gone.left = true;
  ++departed_;
  if (!leaving_ && (HasPosted(gone) || HasSends(peer))) FailIfDeparted(peer);
}

// The first suspicion counts, unless a later one is due earlier.
void Fabric::Suspect(int peer, const Status& why,
                     std::chrono::nanoseconds patience) {
  const Clock::Time until = clock_.Now() + patience;
  if (!suspect_.ok() && suspect_until_ <= until) return;
  suspect_ = why;
  suspect_peer_ = peer;
  suspect_until_ = until;
}

// The suspect has turned up. There was room for one suspicion only.
void Fabric::SuspectAnother() {
  suspect_ = Status();
  for (int r = 0; r < size_ && !leaving_; ++r) {
    if (HasPosted(peers_[r]) || HasSends(r)) FailIfDeparted(r);
  }
}

// Once the time for last messages is over, the peer that went down is to blame.
void Fabric::DecideDown() {
  if (clock_.Now() >= suspect_until_) Fail(suspect_);
}

Status Fabric::HasLeft(int peer) const {
  return Status(
      StatusCode::kUnavailable,
      StrCat("rank ", peer, " (", AddressOf(peer),
             ") has left the job, but rank ", rank_, " still needs it"));
}

// A peer that said good-bye and closed is an error only if it is still needed.
void Fabric::FailIfDeparted(int peer) {
  if (HasDeparted(peer)) FailDeparted(peer, HasLeft(peer));
}

void Fabric::FailDeparted(int peer, const Status& why) {
  if (peers_[peer].link != nullptr) return Fail(why);
  Suspect(peer, why, kNewsPatience);
}

void Fabric::Tick(bool waiting) {
  if (!status_.ok() || size_ == 1) return;
  // A rank that seldom polls should hear of a death soon, too.
  if (!sockets_carry_data_) poller_->Poll(std::chrono::nanoseconds(0));
  const Clock::Time now = clock_.Now();
  // If the last tick is long ago, this process itself may have been stopped,
  // and the silence of its peers since then means nothing.
  if (now - last_tick_ > options_.heartbeat_timeout / 2) {
    for (Peer& peer : peers_) peer.heard = now;
  }
  last_tick_ = now;
  if (now - last_beat_ > options_.heartbeat_timeout / 5) {
    last_beat_ = now;
    SendBeats();
  }
  if (source_ != nullptr) AskForAwaited();
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (peer.down || (peer.link == nullptr && !peer.asked)) continue;
    const std::uint64_t beats = peer.link == nullptr ? 0 : peer.link->beats();
    if (std::exchange(peer.beats, beats) != beats) peer.heard = now;
    if (!waiting) continue;
    if (peer.left || now - peer.heard <= options_.heartbeat_timeout) continue;
    Fail(Silent(r, now));
    return;
  }
}

Status Fabric::Silent(int peer, Clock::Time now) const {
  const Peer& silent = peers_[peer];
  std::string what = ": its process is stopped or cut off";
  if (silent.link == nullptr) {
    const std::string trouble = source_->TroubleWith(peer);
    what = StrCat(", and there is no link to it",
                  trouble.empty() ? "" : ": " + trouble);
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rank ", peer, " (", AddressOf(peer),
                       ") has been silent for ", Seconds(now - silent.heard),
                       " s", what, "; rank ", rank_, " was at ", progress_));
}

void Fabric::SendBeats() {
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[r];
    if (peer.link == nullptr || peer.left || peer.down) continue;
    peer.link->Beat();
    if (peer.control_queued < kMostBeatsQueued) {
      SendControl(r, MessageKind::kPong, progress_);
    }
  }
}

void Fabric::AskProgress() {
  for (int r = 0; r < size_; ++r) {
    if (!peers_[r].left) SendControl(r, MessageKind::kPing, "");
  }
}

bool Fabric::HasPosted(const Peer& peer) {
  return std::any_of(peer.matches.begin(), peer.matches.end(),
                     [](const auto& entry) { return entry.second.posted; });
}

bool Fabric::HasSends(int peer) const {
  return std::any_of(sends_.begin(), sends_.end(), [&](const Lent& lent) {
    return lent.done.run != nullptr && lent.peer == peer;
  });
}

std::vector<int> Fabric::AwaitedPeers() const {
  std::vector<int> awaited;
  for (int r = 0; r < size_; ++r) {
    if (HasPosted(peers_[r]) || HasSends(r)) awaited.push_back(r);
  }
  return awaited;
}

void Fabric::Fail(const Status& why) {
  if (status_.ok()) status_ = why;
}

void Fabric::TearDown() {
  if (!torn_down_) {
    torn_down_ = true;
    for (int r = 0; r < size_; ++r) {
      SendControl(r, MessageKind::kAbort, status_.message(),
                  static_cast<Tag>(status_.code()));
    }
    const Clock::Time give_up = clock_.Now() + kAbortFlush;
    for (bool queued = true; queued && clock_.Now() < give_up;) {
      queued = false;
      for (Peer* peer : linked_) {
        if (peer->down) continue;
        peer->link->Poll();
        queued |= !peer->down && peer->link->queued_messages() > 0;
      }
      if (queued) poller_->Poll(milliseconds(1));
    }
    for (Peer* peer : linked_) peer->link->Close();
    for (Peer& peer : peers_) peer.down = true;
    source_.reset();  // Ranks that dial this one learn that it is gone.
  }
  // From here on no link touches a lent buffer.
  for (Peer& peer : peers_) {
    for (auto& [id, match] : peer.matches) {
      if (match.posted) ready_.Add(match.done, 0, status_);
    }
    peer.matches.clear();
    peer.unsent.clear();
  }
  for (Lent& send : sends_) {
    if (send.done.run != nullptr) ready_.Add(send.done, 0, status_);
    send = Lent{};
  }
}

void Fabric::Leave(std::chrono::nanoseconds patience) {
  if (!status_.ok()) return;
  leaving_ = true;
  const Clock::Time give_up = clock_.Now() + patience;
  // This rank announces nothing after its good-bye, so what it has announced
  // is answered first.
  DeclineAll();
  while (AwaitsAnswers() && status_.ok() && clock_.Now() < give_up) {
    if (!Poll()) Wait(milliseconds(20));
  }
  if (!status_.ok()) return;
  said_bye_ = true;
  for (int r = 0; r < size_; ++r) SendControl(r, MessageKind::kBye, "");
  for (;;) {
    Poll();
    bool waiting = false;
    for (const Peer* peer : linked_) {
      if (peer->down) continue;
      waiting |= !peer->left || peer->link->queued_messages() > 0;
    }
    for (const Peer& peer : peers_) {
      waiting |= peer.asked && !peer.down && !peer.unsent.empty();
    }
    if (!waiting || !status_.ok() || clock_.Now() >= give_up) return;
    Wait(milliseconds(20));
  }
}

}  // namespace gradientflow
