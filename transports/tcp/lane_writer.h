#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "gradientflow/base/done.h"
#include "transports/link.h"
#include "transports/wire.h"

namespace gradientflow {

// The messages that wait to leave on one lane. Knows no socket.
class LaneWriter {
 public:
  void Push(const OutMessage& message);

  bool empty() const { return written_ == queue_.size(); }
  // Number of messages that have not been written completely.
  std::size_t waiting() const { return queue_.size() - written_; }

  // What the next system call writes.
  struct Gathered {
    std::span<const iovec> pieces;
    std::size_t bytes = 0;  // Of all pieces together.
  };
  // Returns the bytes that leave next, up to about `most_bytes`, in pieces that
  // it lists in `room`. They stay valid until Wrote(), TakeAll() or the next
  // Gather(). A few bytes are one piece, a copy.
  Gathered Gather(std::span<iovec> room, std::size_t most_bytes);
  // The first `bytes` of these have left.
  void Wrote(std::size_t bytes);

  // Takes the Done of the next message that has left completely; in order, each
  // once. Returns false if there is none.
  bool PopWritten(Done* done);
  // Takes the Dones of all messages, for the caller to fail.
  std::vector<Done> TakeAll();

 private:
  struct Entry {
    std::array<std::byte, kHeaderBytes> header;
    ConstBufferView payload;
    Done done;
    std::size_t bytes() const { return kHeaderBytes + payload.bytes; }
  };

  // Messages [0, written_) have left, and `front_bytes_` of the next one,
  // including its header. Entries stay where they are, as long as they wait.
  std::deque<Entry> queue_;
  std::size_t written_ = 0;
  std::size_t front_bytes_ = 0;
  // A message of header and payload is in two pieces, which cost the kernel
  // more than a copy of so many bytes does.
  std::array<std::byte, 512> few_;
};

}  // namespace gradientflow
