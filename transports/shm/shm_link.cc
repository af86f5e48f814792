#include "transports/shm/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How frames get through shared memory. Each direction is a FIFO of bytes, and
// each end moves what it can with every Poll():
//
//   Send()      queue_: messages, in order
//   MoveOut()   queue_ -> out FIFO, in pieces; after each piece the head of the
//               FIFO is published and the peer is rung if it sleeps
//   MoveIn()    in FIFO -> header -> landing -> payload; after each piece the
//               bytes are released, and the peer is rung if it waits for room
//
// The socket carries no data. It wakes a sleeping end, and tells when the peer
// is gone.
namespace gradientflow {
namespace {

// One end copies this many bytes before the other end may go on with them. So
// the two copies of a large message overlap, and a piece is still in the cache
// for the second copy.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
// Limit for each direction and Poll(), so that no link starves the others.
constexpr std::size_t kBudgetBytes = std::size_t{512} << 10;
// What a message costs in addition to its bytes, in bytes.
constexpr std::size_t kMessageCost = 256;

enum Cookie : std::uint64_t { kSocket = 0, kProcess = 1 };

}  // namespace

Result<std::unique_ptr<ShmLink>> ShmLink::Create(ShmLinkArgs args) {
  std::unique_ptr<ShmLink> link(new ShmLink(std::move(args)));
  GF_RETURN_IF_ERROR(link->Register());
  return link;
}

ShmLink::ShmLink(ShmLinkArgs args)
    : args_(std::move(args)),
      bell_(args_.socket.get(), &args_.out.control->consumer_sleeps),
      in_(args_.in),
      out_(args_.out) {}

ShmLink::~ShmLink() { Close(); }

Status ShmLink::Register() {
  args_.arena->AddBell(&bell_);
  GF_RETURN_IF_ERROR(
      args_.poller->Add(args_.socket.get(), EPOLLIN, this, kSocket));
  if (!args_.process.valid()) return Status();
  return args_.poller->Add(args_.process.get(), EPOLLIN, this, kProcess);
}

void ShmLink::Disconnect() {
  if (!connected_) return;
  connected_ = false;
  args_.arena->RemoveBell(&bell_);
  args_.poller->Remove(args_.socket.get());
  args_.socket.Reset();
  if (args_.process.valid()) args_.poller->Remove(args_.process.get());
  args_.process.Reset();
}

void ShmLink::Close() {
  if (closed_) return;
  closed_ = true;
  Disconnect();
  queue_.clear();
  completed_ = written_ = front_bytes_ = 0;
}

Status ShmLink::Explain(const Status& why) const {
  return Status(why.code(), StrCat("rank ", args_.peer, " (", args_.address,
                                   ", ", args_.kind, "): ", why.message()));
}

bool ShmLink::OnEvents(std::uint64_t cookie, std::uint32_t /*events*/) {
  if (!connected_) return false;
  if (cookie == kProcess) {
    HangUp("the process has ended");
    return true;
  }
  char rings[64];
  const ssize_t got =
      ::recv(args_.socket.get(), rings, sizeof(rings), MSG_DONTWAIT);
  if (got == 0) {
    HangUp("the connection was closed by the peer, or its process has ended");
  } else if (got < 0 && errno != EAGAIN && errno != EINTR) {
    HangUp("the connection broke");
  }
  return true;  // The peer that rang has left something for Poll().
}

void ShmLink::HangUp(const char* cause) {
  hung_up_ = Explain(Status(StatusCode::kUnavailable, cause));
  paused_ = false;  // Asks the owner for the landing again.
  Disconnect();
}

void ShmLink::Fail(const Status& why) {
  if (down_ || closed_) return;
  down_ = true;
  hung_up_ = why;
  landing_ = nullptr;
  Disconnect();
  CompleteAll(why);
  if (!closed_) args_.events->OnDown(args_.peer, why);
}

void ShmLink::Send(int lane, const OutMessage& message) {
  assert(lane == 0);
  assert(message.header.payload_bytes == message.payload.bytes);
  (void)lane;
  if (!closed_) queue_.push_back(message);
}

std::size_t ShmLink::queued_messages() const {
  return queue_.size() - completed_;
}

void ShmLink::Resume(int lane) {
  assert(lane == 0);
  (void)lane;
  paused_ = false;
}

void ShmLink::Beat() {
  if (connected_) {
    args_.out.control->beats.fetch_add(1, std::memory_order_relaxed);
  }
}

std::uint64_t ShmLink::beats() const {
  return args_.in.control->beats.load(std::memory_order_relaxed);
}

bool ShmLink::Poll() {
  if (closed_) return false;
  if (down_) return CompleteAll(*hung_up_);
  bool moved = MoveIn();
  if (closed_ || down_) return true;
  if (!hung_up_) return MoveOut() || moved;
  // The peer reads no queued message any more, but what it sent before still
  // counts.
  moved |= CompleteAll(*hung_up_);
  if (closed_ || !Drained()) return moved;
  Fail(reading_ == Reading::kHeader && in_.available() == 0
           ? *hung_up_
           : Status(hung_up_->code(),
                    StrCat(hung_up_->message(), ", in mid-message")));
  return true;
}

bool ShmLink::Drained() {
  if (paused_) return true;  // No one takes it.
  if (CanRead()) return false;
  const Status seen = in_.Refresh();
  return !seen.ok() || !CanRead();
}

// ---- In.

bool ShmLink::CanRead() const {
  switch (reading_) {
    case Reading::kHeader:
      return in_.available() >= kHeaderBytes;
    case Reading::kLanding:
      return true;
    case Reading::kPayload:
      return in_.available() > 0;
  }
  return false;
}

bool ShmLink::MoveIn() {
  std::size_t spent = 0;
  while (!paused_ && !closed_ && !down_ && spent < kBudgetBytes) {
    if (!CanRead()) {
      const Status seen = in_.Refresh();
      if (!seen.ok()) {
        Fail(Explain(seen));
        return true;
      }
      if (!CanRead()) break;
    }
    const std::size_t before = in_.available();
    ReadSome();
    spent += before - in_.available() + kMessageCost;
  }
  ReleaseRead();
  return spent > 0;
}

void ShmLink::ReadSome() {
  switch (reading_) {
    case Reading::kHeader:
      return ReadHeader();
    case Reading::kLanding:
      return FindLanding();
    case Reading::kPayload:
      return ReadPayload();
  }
}

void ShmLink::ReadHeader() {
  // A copy, because the peer could still change the original.
  std::array<std::byte, kHeaderBytes> bytes;
  in_.Read(bytes);
  const Result<Header> header = DecodeHeader(bytes);
  if (!header.ok()) return Fail(Explain(header.status()));
  in_header_ = header.value();
  reading_ = Reading::kLanding;
  FindLanding();
}

void ShmLink::FindLanding() {
  const auto landing = args_.events->OnHeader(args_.peer, 0, in_header_);
  if (closed_ || down_) return;
  if (!landing.ok()) return Fail(landing.status());
  paused_ = landing.value().paused;
  if (paused_) return;
  landing_ = landing.value().data;
  landed_bytes_ = 0;
  assert(landing_ != nullptr || in_header_.payload_bytes == 0);
  reading_ = Reading::kPayload;
  ReadPayload();
}

void ShmLink::ReadPayload() {
  const std::size_t bytes = std::min(
      {static_cast<std::size_t>(in_header_.payload_bytes) - landed_bytes_,
       in_.available(), kPieceBytes});
  in_.Read(std::span(landing_ + landed_bytes_, bytes));
  landed_bytes_ += bytes;
  if (in_.unreleased() >= kPieceBytes) ReleaseRead();
  if (landed_bytes_ < in_header_.payload_bytes) return;
  reading_ = Reading::kHeader;
  landing_ = nullptr;
  args_.events->OnMessage(args_.peer, 0, in_header_);
}

void ShmLink::ReleaseRead() {
  if (in_.unreleased() == 0) return;
  in_.Release();
  if (connected_) bell_.Ring(kRingForRoom);
}

// ---- Out.

bool ShmLink::CanWrite() const {
  return written_ < queue_.size() &&
         out_.room() >= (front_bytes_ == 0 ? kHeaderBytes : 1);
}

bool ShmLink::MoveOut() {
  if (written_ == queue_.size()) return false;
  std::size_t spent = 0;
  while (written_ < queue_.size() && spent < kBudgetBytes) {
    if (!CanWrite()) {
      const Status seen = out_.Refresh();
      if (!seen.ok()) {
        Fail(Explain(seen));
        return true;
      }
      if (!CanWrite()) break;
    }
    spent += WriteSome() + kMessageCost;
  }
  PublishWritten();
  CompleteWritten();
  return spent > 0;
}

std::size_t ShmLink::WriteSome() {
  const OutMessage& message = queue_[written_];
  std::size_t moved = 0;
  if (front_bytes_ == 0) {
    out_.Write(EncodeHeader(message.header));
    front_bytes_ = moved = kHeaderBytes;
  }
  const std::size_t sent = front_bytes_ - kHeaderBytes;
  const std::size_t bytes =
      std::min({message.payload.bytes - sent, out_.room(), kPieceBytes});
  out_.Write(std::span(message.payload.data + sent, bytes));
  front_bytes_ += bytes;
  if (front_bytes_ == kHeaderBytes + message.payload.bytes) {
    ++written_;
    front_bytes_ = 0;
  }
  if (out_.unpublished() >= kPieceBytes) PublishWritten();
  return moved + bytes;
}

void ShmLink::PublishWritten() {
  if (out_.unpublished() == 0) return;
  out_.Publish();
  if (connected_) bell_.Ring(kRingForData);
}

void ShmLink::CompleteWritten() {
  while (completed_ < written_) {
    const Done done = queue_[completed_++].done;
    done(Status());
    if (closed_) return;
  }
  // The front is seldom erased, so that a message costs O(1).
  if (completed_ == queue_.size() ||
      (completed_ >= 1024 && completed_ >= queue_.size() / 2)) {
    queue_.erase(queue_.begin(),
                 queue_.begin() + static_cast<std::ptrdiff_t>(completed_));
    written_ -= completed_;
    completed_ = 0;
  }
}

bool ShmLink::CompleteAll(const Status& why) {
  if (queue_.empty()) return false;
  // Messages that a callback adds wait for the next Poll().
  const std::vector<OutMessage> queued = std::exchange(queue_, {});
  const std::size_t begin = std::exchange(completed_, 0);
  written_ = front_bytes_ = 0;
  for (std::size_t i = begin; i < queued.size() && !closed_; ++i) {
    queued[i].done(why);
  }
  return true;
}

// ---- Sleep.

bool ShmLink::PrepareToSleep() {
  if (closed_) return true;
  if (down_) return queue_.empty();
  if (hung_up_) return paused_ && queue_.empty();
  const bool blocked = written_ < queue_.size();
  args_.in.control->consumer_sleeps.store(kRingForSlot |
                                              (paused_ ? 0U : kRingForData) |
                                              (blocked ? kRingForRoom : 0U),
                                          std::memory_order_seq_cst);
  // From here on the peer rings. What it did before is looked at below. Broken
  // counters are left for Poll() to report.
  bool idle = true;
  if (!paused_) idle = in_.Refresh().ok() && !CanRead();
  if (blocked) idle = out_.Refresh().ok() && !CanWrite() && idle;
  const std::uint64_t publications = args_.arena->Publications(args_.peer);
  if (std::exchange(seen_publications_, publications) != publications) {
    idle = false;  // Slots may have changed since they were last read.
  }
  if (!idle) WakeUp();
  return idle;
}

void ShmLink::WakeUp() {
  if (closed_) return;
  args_.in.control->consumer_sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace gradientflow
