#include "transports/tcp/lane_writer.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace gradientflow {

void LaneWriter::Push(const OutMessage& message) {
  assert(message.header.payload_bytes == message.payload.bytes);
  queue_.push_back(
      {EncodeHeader(message.header), message.payload, message.done});
}

// Skips what has left of the front message, then adds headers and payloads
// until either limit is reached.
LaneWriter::Gathered LaneWriter::Gather(std::span<iovec> room,
                                        std::size_t most_bytes) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t skip = front_bytes_;
  const auto add = [&](const std::byte* data, std::size_t size) {
    const std::size_t skipped = std::min(skip, size);
    skip -= skipped;
    const std::size_t rest = std::min(size - skipped, most_bytes - bytes);
    if (rest == 0) return;
    bytes += rest;
    // sendmsg() takes non-const pieces, but only reads them.
    room[count++] = {const_cast<std::byte*>(data + skipped), rest};
  };
  for (std::size_t i = written_;
       i < queue_.size() && bytes < most_bytes && count + 2 <= room.size();
       ++i) {
    add(queue_[i].header.data(), kHeaderBytes);
    add(queue_[i].payload.data, queue_[i].payload.bytes);
  }
  if (count > 1 && bytes <= few_.size()) {
    std::byte* end = few_.data();
    for (const iovec& piece : room.first(count)) {
      std::memcpy(end, piece.iov_base, piece.iov_len);
      end += piece.iov_len;
    }
    room[0] = {few_.data(), bytes};
    count = 1;
  }
  return {room.first(count), bytes};
}

void LaneWriter::Wrote(std::size_t bytes) {
  while (bytes > 0) {
    assert(!empty());
    const std::size_t left = queue_[written_].bytes() - front_bytes_;
    const std::size_t taken = std::min(bytes, left);
    bytes -= taken;
    front_bytes_ += taken;
    if (taken < left) return;
    ++written_;
    front_bytes_ = 0;
  }
}

bool LaneWriter::PopWritten(Done* done) {
  if (written_ == 0) return false;
  *done = queue_.front().done;
  queue_.pop_front();
  --written_;
  return true;
}

std::vector<Done> LaneWriter::TakeAll() {
  std::vector<Done> all;
  for (const Entry& entry : queue_) all.push_back(entry.done);
  queue_.clear();
  written_ = front_bytes_ = 0;
  return all;
}

}  // namespace gradientflow
