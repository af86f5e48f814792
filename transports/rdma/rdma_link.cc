#include "transports/rdma/rdma_link.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// When a queue pair is ended without a cause, the peer or its TCP connection
// knows more about it, and says so within this time.
constexpr std::chrono::seconds kCausePatience(1);
// What a rank that died had written before is mostly in the completion queue by
// the time that the end of its TCP connection arrives.
constexpr int kMostLastPolls = 1000;

}  // namespace

RdmaLink::RdmaLink(RdmaLinkArgs args)
    : args_(std::move(args)),
      handshake_({args_.rank, args_.peer, args_.rail.get(), args_.rail_number,
                  args_.control.get(), args_.places.get(), args_.clock}) {}

RdmaLink::~RdmaLink() { Close(); }

// ---- Setting up

void RdmaLink::Begin() {
  // It may have been told to wait before this link was there.
  for (int lane = 0; lane < args_.control->lanes(); ++lane) {
    args_.control->Resume(lane);
  }
  const Status made =
      end_.Make({args_.rank, args_.peer, address(), args_.rail.get(), this,
                 args_.events, args_.measures ? args_.clock : nullptr});
  if (!made.ok()) return Reject(made);
  handshake_.Begin(&end_);
}

bool RdmaLink::PollSetup() {
  bool moved = args_.control->Poll();
  if (args_.rail->IsFirst(end_.pair())) moved |= args_.rail->Poll();
  const Status late = handshake_.CheckTime();
  if (!late.ok()) Reject(late);
  return moved;
}

void RdmaLink::Reject(const Status& why) {
  if (outcome() != Outcome::kPending) return;
  why_ = why;
  handshake_.Fail(why);
  Quit();
}

bool RdmaLink::settled() const {
  if (outcome() == Outcome::kPending) return false;
  if (control_down_) return true;
  return (outcome() == Outcome::kWorks || handshake_.peer_failed()) &&
         args_.control->queued_messages() == 0;
}

void RdmaLink::Adopt() {
  assert(outcome() == Outcome::kWorks);
  adopted_ = true;
  for (int lane = 0; lane < args_.control->lanes(); ++lane) {
    args_.control->Resume(lane);
  }
  for (int lane = 0; lane < kRdmaLanes; ++lane) end_.inbox().Resume(lane);
  if (args_.places != nullptr) {
    args_.places->SetLink(args_.peer, this, handshake_.offer().slots);
  }
}

void RdmaLink::Send(int lane, const OutMessage& message) {
  assert(lane >= 0 && lane < kRdmaLanes);
  if (closed_) return;
  if (down_) return end_.outbox().Refuse(message, why_);
  if (!IsOfRanks(message.header.kind)) return end_.outbox().Send(lane, message);
  // The peer closes when it has a good-bye, so all else must be there by then.
  if (message.header.kind == MessageKind::kBye) {
    held_control_.push_back(message);
  } else {
    args_.control->Send(0, message);
  }
}

bool RdmaLink::CanSendHeld() const {
  return !held_control_.empty() && drained();
}

void RdmaLink::SendHeldControl() {
  if (!CanSendHeld()) return;
  for (const OutMessage& message : std::exchange(held_control_, {})) {
    args_.control->Send(0, message);
  }
}

// A callback of the control link or of the rail may end this one.
bool RdmaLink::Poll() {
  if (gone() || !lost_.ok()) return PollLost();
  bool moved = resumed_control_ && HandOnPaused();
  if (!gone()) moved |= args_.control->Poll();
  if (!gone() && args_.rail->IsFirst(end_.pair())) moved |= args_.rail->Poll();
  if (HasWork()) Work(&moved);
  return moved;
}

bool RdmaLink::PollLost() {
  if (closed_) return false;
  if (down_) {
    const bool moved = args_.control->Poll();
    return end_.outbox().RunDones() || moved;
  }
  FailAndTell(lost_);
  return true;
}

bool RdmaLink::HandOnPaused() {
  resumed_control_ = false;
  if (!paused_control_) return false;
  const Status status = HandOn(*paused_control_);
  if (!status.ok() && !gone()) Fail(status);
  return true;
}

// Most links have nothing to do but to look for what has come.
bool RdmaLink::HasWork() const {
  if (gone()) return !closed_;
  return end_.inbox().busy() || end_.outbox().busy() || end_.pair()->dirty() ||
         end_.pair()->flushed() || !held_control_.empty();
}

void RdmaLink::Work(bool* moved) {
  if (!gone()) {
    const Status status = end_.inbox().Push(moved);
    if (!status.ok() && !gone()) FailAndTell(status);
  }
  if (!gone()) {
    *moved |= end_.outbox().Push();
    end_.pair()->Flush();
  }
  if (!gone()) {
    SendHeldControl();
    EndIfFlushed();
  }
  if (!closed_) *moved |= end_.outbox().RunDones();
}

void RdmaLink::EndIfFlushed() {
  if (!end_.pair()->flushed()) return;
  const Clock::Time now = args_.clock->Now();
  if (flushed_at_ == Clock::Time{}) flushed_at_ = now;
  if (now - flushed_at_ < kCausePatience) return;
  Fail(Explain(StatusCode::kUnavailable,
               StrCat("its queue pair with ", args_.rail->name(),
                      " was ended, and no one has said why")));
}

void RdmaLink::Resume(int lane) {
  if (gone()) return;
  if (lane == 0) {
    resumed_control_ = true;
    for (int i = 0; i < args_.control->lanes(); ++i) args_.control->Resume(i);
  }
  end_.inbox().Resume(lane);
}

bool RdmaLink::PrepareToSleep() {
  if (closed_) return true;
  if (!args_.control->PrepareToSleep() || end_.outbox().CanMove()) return false;
  if (down_) return true;
  const bool control_can_move = resumed_control_ && paused_control_;
  if (!lost_.ok() || control_can_move || CanSendHeld()) return false;
  if (end_.inbox().CanMove() || end_.pair()->dirty()) return false;
  return !args_.rail->IsFirst(end_.pair()) || args_.rail->PrepareToSleep();
}

std::size_t RdmaLink::queued_messages() const {
  if (closed_) return 0;
  const std::size_t queued = args_.control->queued_messages() +
                             held_control_.size() + end_.outbox().queued();
  return queued > 0 || end_.pair() == nullptr || end_.pair()->idle() ? queued
                                                                     : 1;
}

// ---- What the peer writes

void RdmaLink::OnImmediate(std::uint32_t number, std::uint32_t bytes) {
  if (handshake_.AwaitsProbe()) return OnProbe(bytes);
  if (!lost_.ok()) return;
  if (!IsPlaced(number)) return OnRingImmediate(number, bytes);
  ++args_.rail->stats().notices;
  const bool told = args_.places != nullptr &&
                    args_.places->TellSink(args_.peer, NoticeOf(number));
  if (!told) OnEarlyNotice(NoticeOf(number));
}

void RdmaLink::OnProbe(std::uint32_t bytes) {
  const Status proven = handshake_.OnProbe(bytes);
  if (!proven.ok()) Reject(proven);
}

void RdmaLink::OnRingImmediate(std::uint32_t number, std::uint32_t bytes) {
  const auto immediate = DecodeImmediate(number);
  const Status status = immediate.ok() ? Handle(immediate.value(), bytes)
                                       : Explain(StatusCode::kDataLoss,
                                                 immediate.status().message());
  if (!status.ok() && !gone()) OnBroken(status);
}

void RdmaLink::OnEarlyNotice(std::uint32_t notice) {
  const Status kept = args_.places != nullptr
                          ? args_.places->KeepNotice(args_.peer, notice)
                          : Status(StatusCode::kDataLoss,
                                   "sent a placed message, expected none");
  if (!kept.ok()) OnBroken(Explain(kept.code(), kept.message()));
}

Status RdmaLink::Handle(const Immediate& immediate, std::uint32_t bytes) {
  const Status credits = end_.outbox().OnCredits(immediate.credits);
  if (!credits.ok()) return Explain(credits.code(), credits.message());
  switch (immediate.kind) {
    case ImmediateKind::kFrame:
      return end_.inbox().OnFrame(immediate.lane, bytes, immediate.filled);
    case ImmediateKind::kPiece:
      return end_.inbox().OnPiece(immediate.lane);
    case ImmediateKind::kGrant:
      return immediate.grant ? OnGrant(immediate.lane) : Status();
    case ImmediateKind::kPlaced:
      break;  // OnImmediate() has taken these.
  }
  return Status();
}

Status RdmaLink::OnGrant(int lane) {
  const Status granted = end_.outbox().OnGrant(lane);
  return granted.ok() ? granted : Explain(granted.code(), granted.message());
}

void RdmaLink::OnWritten(std::uint64_t cookie) {
  if (!handshake_.OnWritten()) end_.outbox().OnWritten(cookie);
}

void RdmaLink::OnBroken(const Status& why) {
  if (adopted_) return FailAndTell(why);
  // A link that this end has passed is for the peer to fail.
  if (handshake_.passed()) {
    lost_ = why;
  } else if (handshake_.probing()) {
    Reject(
        Status(why.code(), StrCat(why.message(), ": ", handshake_.PathText())));
  } else {
    Reject(why);
  }
}

// ---- What the control link tells

// The owner has one place for the control messages of a peer, and those of the
// queue pair go there, too. So what comes in pieces by TCP is handed on when it
// is complete.
Result<LinkEvents::Landing> RdmaLink::OnHeader(int peer, int lane,
                                               const Header& header) {
  static_cast<void>(peer);
  static_cast<void>(lane);
  const bool of_rail = header.kind == MessageKind::kRail;
  if (!of_rail && !adopted_) return Landing{nullptr, true};
  if (paused_control_) return Landing{nullptr, true};
  if (!IsOfRanks(header.kind) || (of_rail && adopted_)) {
    return Explain(StatusCode::kDataLoss,
                   of_rail ? "sent an RDMA set-up frame, expected none any more"
                           : StrCat("sent a message of kind ",
                                    static_cast<int>(header.kind),
                                    " by TCP, expected it by RDMA"));
  }
  control_text_.resize(header.payload_bytes);
  return Landing{control_text_.data(), false};
}

void RdmaLink::OnMessage(int peer, int lane, const Header& header) {
  static_cast<void>(peer);
  static_cast<void>(lane);
  if (gone()) return;
  if (header.kind != MessageKind::kRail) {
    const Status status = HandOn(header);
    if (!status.ok() && !gone()) Fail(status);
    return;
  }
  const auto frame = DecodeRailFrame(
      std::string(reinterpret_cast<const char*>(control_text_.data()),
                  control_text_.size()));
  const Status status =
      frame.ok() ? handshake_.OnFrame(frame.value())
                 : Explain(frame.status().code(), frame.status().message());
  if (!status.ok()) Reject(status);
}

Status RdmaLink::HandOn(const Header& header) {
  paused_control_.reset();
  const auto landing = args_.events->OnHeader(args_.peer, 0, header);
  if (closed_) return Status();
  if (!landing.ok()) return landing.status();
  if (landing.value().paused) {
    paused_control_ = header;
    return Status();
  }
  std::copy(control_text_.begin(), control_text_.end(), landing.value().data);
  args_.events->OnMessage(args_.peer, 0, header);
  return Status();
}

void RdmaLink::TakeTheRest() {
  control_down_ = true;
  if (!adopted_) return;
  for (int i = 0; i < kMostLastPolls && !gone() && args_.rail->Poll(); ++i) {
  }
}

void RdmaLink::OnDown(int peer, const Status& why) {
  static_cast<void>(peer);
  TakeTheRest();
  if (adopted_) return End(why);
  lost_ = why;
  Reject(why);
}

// ---- The end

// The card must not touch what was lent from here on.
void RdmaLink::Quit() {
  if (args_.places != nullptr && adopted_) {
    args_.places->DropLink(args_.peer, args_.rail_number);
  }
  end_.Close();
}

// The peer learns the reason by TCP. It would only see the connection's end,
// and blame this rank's process.
void RdmaLink::FailAndTell(const Status& why) {
  if (!control_down_) {
    why_ = why;
    down_ = true;  // What the control link may still bring is too late.
    last_words_ = why.message().substr(0, kMaxControlBytes);
    OutMessage message;
    message.header.kind = MessageKind::kAbort;
    message.header.tag = static_cast<Tag>(why.code());
    message.header.payload_bytes = last_words_.size();
    message.payload = {reinterpret_cast<const std::byte*>(last_words_.data()),
                       last_words_.size(),
                       {}};
    args_.control->Send(0, message);
    args_.control->Poll();
    down_ = false;
  }
  if (!gone()) Fail(why);
}

void RdmaLink::Fail(const Status& why) {
  assert(!gone());
  down_ = true;
  why_ = why;
  Quit();
  end_.outbox().EndAll(why);
  for (const OutMessage& message : std::exchange(held_control_, {})) {
    end_.outbox().Refuse(message, why);
  }
  // If it is down already, it still has completions to run.
  if (!control_down_) args_.control->Close();
  args_.events->OnDown(args_.peer, why);
}

void RdmaLink::Close() {
  if (std::exchange(closed_, true)) return;
  Quit();
  if (end_.is_made()) end_.outbox().DropAll();
  held_control_.clear();
  args_.control->Close();
}

}  // namespace gradientflow
