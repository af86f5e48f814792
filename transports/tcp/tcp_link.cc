#include "transports/tcp/tcp_link.h"

#include <sys/epoll.h>

#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How frames get through the connections of a link:
//
//   Send()      lane.writer: messages, in order
//   Write()     lane.writer -> send(); from Poll(), or from OnEvents() if a
//               full connection has room again
//   Read()      recv() -> lane.reader -> OnHeader(), landing, OnMessage();
//               from OnEvents(), from Look(), or from Poll() if a budget was
//               spent or nobody looks at an unwatched lane
//   OnReturned()  an io thread has moved what Read() or Write() had lent, which
//                 go on from there
//   EndLane()   a connection ended: stops writing, reads the others to their
//               end, then Fail() reports OnDown()
namespace gradientflow {
namespace {

// Limits for each lane and call, so that no lane starves the others.
constexpr std::size_t kReadBudgetBytes = std::size_t{1} << 20;
constexpr std::size_t kWriteBudgetBytes = std::size_t{1} << 20;

// Calls visit(index) for each set bit. `bits` is a snapshot.
template <typename Visit>
void ForEachBit(std::uint64_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) {
    visit(static_cast<std::size_t>(std::countr_zero(bits)));
  }
}

}  // namespace

Result<std::unique_ptr<TcpLink>> TcpLink::Create(TcpLinkArgs args) {
  if (args.lanes.empty() || args.lanes.size() > kMaxTcpLanes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected 1 to ", kMaxTcpLanes, " lanes, seen ",
                         args.lanes.size()));
  }
  std::unique_ptr<TcpLink> link(new TcpLink(std::move(args)));
  for (const auto& lane : link->lanes_) {
    GF_RETURN_IF_ERROR(lane->Register());
  }
  return link;
}

TcpLink::TcpLink(TcpLinkArgs args)
    : peer_(args.peer),
      address_(std::move(args.address)),
      poller_(args.poller),
      events_(args.events),
      io_(std::move(args.io)) {
  const TcpLane::Owner owner{this, poller_, this, this, io_.get()};
  for (Socket& socket : args.lanes) {
    lanes_.push_back(std::make_unique<TcpLane>(static_cast<int>(lanes_.size()),
                                               std::move(socket), owner));
  }
  if (lanes_.size() < 3) return;
  std::vector<const Socket*> data;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    data.push_back(&lanes_[i]->socket);
  }
  rails_ = std::make_unique<Rails>(std::move(data));
  if (!rails_->several()) rails_.reset();
}

TcpLink::~TcpLink() { Close(); }

int TcpLink::DataLane(std::uint64_t spread) {
  if (rails_ == nullptr) return FixedLane(spread);
  return 1 + static_cast<int>(rails_->Pick(spread, [&](std::size_t lane) {
           return lanes_[1 + lane]->writer.waiting();
         }));
}

void TcpLink::Send(int lane, const OutMessage& message) {
  assert(lane >= 0 && lane < lanes());
  if (closed_) return;
  TcpLane& to = *lanes_[static_cast<std::size_t>(lane)];
  to.writer.Push(message);
  if (writing_ && !to.blocked && !to.broken && !to.writing_lent()) {
    to_write_ |= to.bit();
  }
}

std::size_t TcpLink::queued_messages() const {
  std::size_t queued = 0;
  for (const auto& lane : lanes_) queued += lane->writer.waiting();
  return queued;
}

void TcpLink::Resume(int lane) {
  assert(lane >= 0 && lane < lanes());
  TcpLane& resumed = *lanes_[static_cast<std::size_t>(lane)];
  if (gone() || !resumed.reader.paused()) return;
  // Does not read here, because the caller may be a callback of this very lane.
  resumed.reader.Resume();
  to_read_ |= resumed.bit();
}

// Over several networks the peer chooses the lane. Only the poller knows when a
// full connection has room again, and when an io thread has read a payload.
int TcpLink::LaneToLook(std::uint64_t spread) const {
  if (rails_ != nullptr) return -1;
  const int fixed = FixedLane(spread);
  const TcpLane& lane = *lanes_[static_cast<std::size_t>(fixed)];
  return lane.blocked || lane.reading_lent() ? -1 : fixed;
}

bool TcpLink::Look(int lane) {
  TcpLane& looked_at = *lanes_[static_cast<std::size_t>(lane)];
  if (gone() || looked_at.reader.paused()) return false;
  if (unwatched_.Look(lane)) looked_at.watched = false;
  return Read(looked_at);
}

bool TcpLink::WatchAll() {
  bool all = true;
  ForEachBit(unwatched_.TakeAll(), [&](std::size_t i) {
    TcpLane& lane = *lanes_[i];
    lane.watched = true;
    if (lane.ended || lane.Register().ok()) return;
    to_read_ |= lane.bit();
    all = false;
  });
  return all;
}

bool TcpLink::Poll() {
  if (closed_) return false;
  if (down_) return CompleteAll(cause_);
  bool moved = false;
  const auto read = [&](std::size_t i) {
    if (!gone()) moved |= Read(*lanes_[i]);
  };
  ForEachBit(std::exchange(to_read_, 0), read);
  ForEachBit(to_write_, [&](std::size_t i) {
    if (!gone()) moved |= Write(*lanes_[i]);
  });
  ForEachBit(unwatched_.Poll(), read);
  if (unwatched_.stale()) WatchAll();
  return moved;
}

bool TcpLink::PrepareToSleep() {
  if (closed_) return true;
  if (down_) return queued_messages() == 0;
  return WatchAll() && (to_read_ | to_write_) == 0;
}

void TcpLink::Close() {
  if (closed_) return;
  closed_ = true;
  Disconnect();
  for (const auto& lane : lanes_) lane->writer.TakeAll();
}

bool TcpLink::OnEvents(std::uint64_t cookie, std::uint32_t events) {
  TcpLane& lane = *lanes_[cookie];
  if (gone() || lane.ended) return false;
  bool moved = false;
  if (lane.reader.paused()) {
    // A paused lane waits for no input, so only EPOLLHUP and EPOLLERR come.
    // What has arrived is still good, and worth waiting for if the peer closed
    // in good order.
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
      lane.broken = true;
      lane.blocked = false;
      lane.Deregister();
      if (!bye_) EndLane(lane, ConnectError(lane.socket));
      return true;
    }
  } else if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    moved |= Read(lane);
  }
  if (!gone() && !lane.ended && lane.blocked && (events & EPOLLOUT) != 0) {
    lane.blocked = false;
    moved |= Write(lane);
  }
  return moved;
}

Result<LinkEvents::Landing> TcpLink::OnHeader(int lane, const Header& header) {
  if (IsControl(header.kind) && lane != 0) {
    return Explain(
        StatusCode::kDataLoss,
        StrCat("expected control messages on lane 0 only, seen kind ",
               static_cast<int>(header.kind), " on lane ", lane));
  }
  return events_->OnHeader(peer_, lane, header);
}

void TcpLink::OnMessage(int lane, const Header& header) {
  bye_ |= header.kind == MessageKind::kBye;
  events_->OnMessage(peer_, lane, header);
}

// ---- In.

bool TcpLink::Read(TcpLane& lane) {
  if (lane.ended || lane.reading_lent()) return false;
  bool moved = false;
  const LaneReader::Outcome outcome =
      lane.reader.Advance(kReadBudgetBytes, &moved);
  if (gone()) return true;
  switch (outcome) {
    case LaneReader::Outcome::kMore:
      to_read_ |= lane.bit();
      break;
    case LaneReader::Outcome::kEnded:
      EndLane(lane, lane.reader.end_error());
      return true;
    case LaneReader::Outcome::kFailed: {
      // The sink's own errors already say which peer and where.
      const Status& why = lane.reader.why();
      Fail(lane.reader.refused()
               ? why
               : Explain(why.code(),
                         StrCat("lane ", lane.index, ": ", why.message())));
      return true;
    }
    case LaneReader::Outcome::kLarge:
      lane.LendRead();
      break;
    case LaneReader::Outcome::kDrained:
    case LaneReader::Outcome::kPaused:
    case LaneReader::Outcome::kStopped:
      break;
  }
  const Status registered = lane.Register();
  if (!registered.ok()) Fail(registered);
  if (!gone() && outcome == LaneReader::Outcome::kPaused && !writing_) {
    FailIfDrained();
  }
  return moved;
}

// ---- Out.

bool TcpLink::Write(TcpLane& lane) {
  if (lane.writing_lent()) return false;
  std::size_t spent = 0;
  int error = 0;
  while (!lane.writer.empty() && spent < kWriteBudgetBytes && !lane.blocked) {
    std::array<iovec, kMostPiecesAtOnce> room;
    const LaneWriter::Gathered next =
        lane.writer.Gather(room, kMostBytesAtOnce);
    if (lane.LendWrite(next)) break;
    const std::int64_t sent = SendPieces(lane.socket.fd(), next.pieces);
    if (sent < 0 && sent != -EAGAIN && sent != -EWOULDBLOCK) {
      error = static_cast<int>(-sent);
      break;
    }
    const std::size_t taken = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    lane.writer.Wrote(taken);
    spent += taken;
    lane.blocked = taken < next.bytes;
  }
  if (lane.writer.empty() || lane.blocked || lane.writing_lent()) {
    to_write_ &= ~lane.bit();
  } else {
    to_write_ |= lane.bit();
  }
  CompleteWritten(lane);
  if (gone()) return true;
  if (error != 0) {
    BreakLane(lane, error);
    return true;
  }
  const Status registered = lane.Register();
  if (!registered.ok()) Fail(registered);
  return spent > 0 || lane.writing_lent();
}

void TcpLink::CompleteWritten(TcpLane& lane) {
  Done done;
  while (!closed_ && lane.writer.PopWritten(&done)) done(Status());
}

bool TcpLink::CompleteAll(const Status& why) {
  bool any = false;
  for (const auto& lane : lanes_) {
    for (const Done& done : lane->writer.TakeAll()) {
      if (closed_) return true;
      done(why);
      any = true;
    }
  }
  return any;
}

// ---- What io threads have moved.

void TcpLink::OnReturned(Loan* loan) {
  TcpLane& lane = *lanes_[static_cast<std::size_t>(loan->lane)];
  if (loan->reads) {
    OnLentRead(lane);
  } else {
    OnLentWritten(lane);
  }
}

void TcpLink::LineMeasured(int mbps) {
  if (io_ == nullptr || !io_->Measured(mbps)) return;
  for (const auto& lane : lanes_) lane->MayLend();
}

void TcpLink::OnLentRead(TcpLane& lane) {
  lane.TakeRead();
  Read(lane);
  EndBroken(lane);
}

// Once the link has stopped writing, it does not matter why the io thread has.
void TcpLink::OnLentWritten(TcpLane& lane) {
  int error = 0;
  const bool more = lane.TakeWritten(&error);
  CompleteWritten(lane);
  if (gone() || !writing_ || lane.broken) return;
  if (more) {
    Write(lane);
  } else {
    BreakLane(lane, error);
  }
}

// ---- The end.

Status TcpLink::Explain(StatusCode code, const std::string& what) const {
  return Status(code, StrCat("rank ", peer_, " (", address_, ", tcp): ", what));
}

void TcpLink::EndLane(TcpLane& lane, int error) {
  if (gone() || lane.ended) return;
  lane.Deregister();
  lane.ended = true;
  lane.blocked = false;
  const bool cut = lane.reader.in_message();
  std::string what = error == 0 ? "the connection was closed by the peer, or "
                                  "its process has ended"
                                : "the connection broke: " + ErrorText(error);
  if (cut) what += ", in mid-message";
  if (cause_.ok() || cut) cause_ = Explain(StatusCode::kUnavailable, what);
  cut_ |= cut;
  StopWriting();
  FailIfDrained();
}

// The last messages of the peer may wait to be read, and they come first.
void TcpLink::BreakLane(TcpLane& lane, int error) {
  lane.broken = true;
  lane.break_error = error;
  to_write_ &= ~lane.bit();
  Read(lane);
  EndBroken(lane);
}

// If an io thread reads the lane, it has to come back first.
void TcpLink::EndBroken(TcpLane& lane) {
  if (gone() || lane.ended || lane.reading_lent()) return;
  const int error = std::exchange(lane.break_error, 0);
  if (error != 0 && (!lane.reader.paused() || !bye_)) EndLane(lane, error);
}

// The peer, if it is alive, sees the end of every lane and closes its own
// lanes.
void TcpLink::StopWriting() {
  if (!std::exchange(writing_, false)) return;
  to_write_ = 0;
  for (const auto& lane : lanes_) {
    lane->blocked = false;
    if (lane->ended) continue;
    ::shutdown(lane->socket.fd(), SHUT_WR);
    const Status registered = lane->Register();
    if (!registered.ok()) return Fail(registered);
  }
}

// Waits for a paused lane only if the peer closed in good order. After a death,
// what the lane holds may never be asked for.
void TcpLink::FailIfDrained() {
  if (gone()) return;
  for (const auto& lane : lanes_) {
    if (!lane->ended && !(lane->reader.paused() && !bye_)) return;
  }
  Fail(bye_ && !cut_ ? Explain(StatusCode::kUnavailable, "closed") : cause_);
}

void TcpLink::Fail(const Status& why) {
  if (gone()) return;
  down_ = true;
  cause_ = why;
  Disconnect();
  // What an io thread had written, a peer may have read before it left.
  for (const auto& lane : lanes_) CompleteWritten(*lane);
  CompleteAll(why);
  if (!closed_) events_->OnDown(peer_, why);
}

void TcpLink::Disconnect() {
  to_read_ = to_write_ = 0;
  for (const auto& lane : lanes_) lane->TakeBack();
  for (const auto& lane : lanes_) {
    lane->reader.Stop();
    lane->Deregister();
    lane->ended = true;
    lane->socket.Close();
  }
}

}  // namespace gradientflow
