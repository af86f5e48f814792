#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
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
  // Not wholly written.
  std::size_t waiting() const { return queue_.size() - written_; }

  // The bytes that leave next: fills a prefix of `pieces` with up to about
  // `most_bytes`, returns how many. Valid until the next call but Gather().
  std::size_t Gather(std::span<iovec> pieces, std::size_t most_bytes);
  // The first `bytes` of those have left.
  void Wrote(std::size_t bytes);

  // The next of the messages that have left whole; in order, each once.
  bool PopWritten(Done* done);
  // Everything, to be failed by the caller.
  std::vector<Done> TakeAll();

 private:
  struct Entry {
    std::array<std::byte, kHeaderBytes> header;
    ConstBufferView payload;
    Done done;
    std::size_t bytes() const { return kHeaderBytes + payload.bytes; }
  };

  // [0, completed_) are popped, [completed_, written_) have left; of the next
  // one `front_bytes_` have, header included.
  std::vector<Entry> queue_;
  std::size_t completed_ = 0;
  std::size_t written_ = 0;
  std::size_t front_bytes_ = 0;
};

}  // namespace gradientflow
