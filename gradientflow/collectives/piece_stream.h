#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// A stream that copies pieces one way, converting on the device, a few of them
// under way at a time; what is done is found by looking, never by waiting.
// NOT thread-safe. Destruction waits for the work given to the device.
class PieceStream {
 public:
  // `depth`: pieces under way; `piece_bytes`: the largest, on the host's side.
  static Result<std::unique_ptr<PieceStream>> Create(Device& device, int depth,
                                                     std::size_t piece_bytes);

  bool full() const { return under_way_.size() == events_.size(); }
  bool empty() const { return under_way_.empty(); }
  Stream& stream() { return *stream_; }

  // Work that belongs to the piece that Close() comes for. Errors say what
  // failed.
  Status CopyOut(const StagedPiece& piece);
  // `first`, `last`: of its job.
  Status CopyIn(const StagedPiece& piece, bool first, bool last);
  // The whole call, in the device's memory.
  Status ReduceAlone(const StagedJob& job);

  // What was given to the stream since the last Close() is `piece`'s, whether
  // all went well or not. REQUIRES !full().
  Status Close(const StagedPiece& piece);

  // The oldest piece, once its work is done; false: it is not, or there is
  // none. With an error of the device the piece is over, too.
  Result<bool> Done();
  // Takes that piece out. REQUIRES !empty().
  StagedPiece Pop();

 private:
  PieceStream(Device& device, std::size_t depth)
      : device_(device), events_(depth) {}
  Status Unpack(const StagedPiece& piece);
  Status ClearNonfinite(const StagedJob& job);
  Status FetchNonfinite(const StagedJob& job);

  Device& device_;
  DeviceMemory packed_;  // Of one piece: the stream's order guards it.
  std::vector<std::unique_ptr<Event>> events_;
  std::size_t next_ = 0;  // Event.
  std::deque<StagedPiece> under_way_;
  std::unique_ptr<Stream> stream_;  // The first to go.
};

}  // namespace gradientflow
