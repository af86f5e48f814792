#include "transports/tcp/lane_reader.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <span>

namespace gradientflow {
namespace {

// If more than this is missing of a payload, a read gets at most the next
// header ahead. Reading further would copy bytes of the next payload that could
// go straight to their landing.
constexpr std::size_t kLargeBytes = std::size_t{8} << 10;
// Limit of one read. A larger one keeps the peer waiting for room.
constexpr std::size_t kMostAtOnce = std::size_t{512} << 10;
// What a message costs in addition to its bytes, in bytes.
constexpr std::size_t kMessageCost = 256;

}  // namespace

bool LaneReader::in_message() const {
  return reading_ != Reading::kHeader || buffered() > 0;
}

LaneReader::Outcome LaneReader::Advance(std::size_t budget_bytes, bool* moved) {
  if (stopped_) return Outcome::kStopped;
  if (paused_) return Outcome::kPaused;
  spent_bytes_ = 0;
  drained_ = false;
  Outcome outcome = Outcome::kDrained;
  for (;;) {
    const bool needs_bytes =
        (reading_ == Reading::kHeader && buffered() < kHeaderBytes) ||
        (reading_ == Reading::kPayload && buffered() == 0 &&
         missing_bytes() > 0);
    // A fresh header is always followed by its payload, whatever the cost.
    const bool may_leave = reading_ == Reading::kHeader ||
                           (reading_ == Reading::kPayload &&
                            landed_bytes_ > 0 && missing_bytes() > 0);
    if (may_leave && spent_bytes_ >= budget_bytes) return Outcome::kMore;
    if (needs_bytes) {
      if (!Fill(&outcome, moved)) return outcome;
    } else {
      *moved = true;
      if (!ReadNext(&outcome)) return outcome;
    }
  }
}

bool LaneReader::ReadNext(Outcome* outcome) {
  switch (reading_) {
    case Reading::kHeader:
      return ReadHeader(outcome);
    case Reading::kLanding:
      return FindLanding(outcome);
    case Reading::kPayload:
      TakeBuffered();
      return missing_bytes() > 0 || Deliver(outcome);
  }
  return false;
}

bool LaneReader::ReadHeader(Outcome* outcome) {
  const Result<Header> header = DecodeHeader(
      std::span<const std::byte, kHeaderBytes>(&buffer_[begin_], kHeaderBytes));
  if (!header.ok()) {
    why_ = header.status();
    *outcome = Outcome::kFailed;
    return false;
  }
  header_ = header.value();
  begin_ += kHeaderBytes;
  spent_bytes_ += kMessageCost;
  reading_ = Reading::kLanding;
  return true;
}

bool LaneReader::FindLanding(Outcome* outcome) {
  const auto landing = sink_->OnHeader(lane_, header_);
  if (stopped_) {
    *outcome = Outcome::kStopped;
    return false;
  }
  if (!landing.ok()) {
    why_ = landing.status();
    refused_ = true;
    *outcome = Outcome::kFailed;
    return false;
  }
  if (landing.value().paused) {
    paused_ = true;
    *outcome = Outcome::kPaused;
    return false;
  }
  landing_ = landing.value().data;
  landed_bytes_ = 0;
  assert(landing_ != nullptr || header_.payload_bytes == 0);
  reading_ = Reading::kPayload;
  return true;
}

void LaneReader::TakeBuffered() {
  const std::size_t bytes = std::min(buffered(), missing_bytes());
  if (bytes == 0) return;
  std::memcpy(landing_ + landed_bytes_, &buffer_[begin_], bytes);
  begin_ += bytes;
  landed_bytes_ += bytes;
  spent_bytes_ += bytes;
}

bool LaneReader::Deliver(Outcome* outcome) {
  reading_ = Reading::kHeader;
  landing_ = nullptr;
  sink_->OnMessage(lane_, header_);
  if (!stopped_) return true;
  *outcome = Outcome::kStopped;
  return false;
}

std::array<iovec, 2> LaneReader::Rest() {
  assert(reading_ == Reading::kPayload && buffered() == 0);
  begin_ = end_ = 0;
  return {iovec{landing_ + landed_bytes_, missing_bytes()},
          iovec{buffer_.data(), kHeaderBytes}};
}

// `bytes` have been read, first into the landing, the rest into the buffer.
void LaneReader::Landed(std::size_t bytes) {
  const std::size_t landed =
      reading_ == Reading::kPayload ? std::min(bytes, missing_bytes()) : 0;
  landed_bytes_ += landed;
  end_ += bytes - landed;
}

void LaneReader::End(int error) {
  ended_ = true;
  end_error_ = error;
}

// One read fills two places: what is missing of the payload goes to its
// landing, and what follows it to the read-ahead buffer.
bool LaneReader::Fill(Outcome* outcome, bool* moved) {
  if (ended_) {
    *outcome = Outcome::kEnded;
    return false;
  }
  if (reading_ == Reading::kPayload && header_.payload_bytes >= large_bytes_) {
    *outcome = Outcome::kLarge;
    return false;
  }
  *outcome = Outcome::kDrained;
  // The last read got less than it asked for, so there is no more.
  if (drained_) return false;
  if (begin_ > 0) {  // What is left is part of a header.
    std::memmove(buffer_.data(), &buffer_[begin_], buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  iovec pieces[2];
  int count = 0;
  std::size_t direct = 0;
  std::size_t ahead = buffer_.size() - end_;
  if (reading_ == Reading::kPayload) {
    direct = std::min(missing_bytes(), kMostAtOnce);
    pieces[count++] = {landing_ + landed_bytes_, direct};
    if (missing_bytes() > kLargeBytes) ahead = kHeaderBytes;
    if (missing_bytes() > direct) ahead = 0;
  }
  if (ahead > 0) pieces[count++] = {&buffer_[end_], ahead};
  const std::int64_t got = source_->Read(pieces, count);
  if (got == -EAGAIN || got == -EWOULDBLOCK) return false;
  if (got <= 0) {
    end_error_ = static_cast<int>(-got);
    *outcome = Outcome::kEnded;
    return false;
  }
  const auto bytes = static_cast<std::size_t>(got);
  assert(bytes <= direct + ahead);
  spent_bytes_ += std::min(bytes, direct);
  Landed(bytes);
  drained_ = bytes < direct + ahead;
  *moved = true;
  return true;
}

}  // namespace gradientflow
