#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// A stream that copies pieces in one direction and converts them on the device.
// A few pieces are under way at a time. It finds out that a piece is done by
// polling, and never blocks. NOT thread-safe. The destructor waits for the work
// that was given to the device.
class PieceStream {
 public:
  // At most `depth` pieces are under way. `piece_bytes` is the size of the
  // largest piece on the host. Errors are the device's.
  static Result<std::unique_ptr<PieceStream>> Create(Device& device, int depth,
                                                     std::size_t piece_bytes);

  bool full() const { return under_way_.size() == events_.size(); }
  bool empty() const { return under_way_.empty(); }
  const StagedPiece& oldest() const { return under_way_.front().piece; }
  Stream& stream() { return *stream_; }

  // These give the stream work for one piece, which the next Close() names.
  // Errors say what failed.
  Status CopyOut(const StagedPiece& piece);
  // Packs elements [begin, end) of the output into the image of the job.
  Status PackImage(const StagedJob& job, std::size_t begin, std::size_t end);
  // `first` and `last` say whether it is the first or last piece of its job.
  Status CopyIn(const StagedPiece& piece, bool first, bool last);
  // Runs the whole allreduce of a single rank in the device's memory.
  Status ReduceAlone(const StagedJob& job);

  // Everything that was given to the stream since the last Close() belongs to
  // `piece`, whether it succeeded or not; after an error, too, the piece is
  // under way. REQUIRES !full().
  Status Close(const StagedPiece& piece);

  // Returns true once the work of the oldest piece is done; false if it is not
  // done or there is no piece. After an error the piece is over only if that
  // MeansLost(): otherwise ask again.
  Result<bool> Done();
  // Takes out the oldest piece. REQUIRES !empty().
  StagedPiece Pop();

 private:
  PieceStream(Device& device, std::size_t depth)
      : device_(device), events_(depth) {}
  Status Unpack(const StagedPiece& piece);
  Status ClearNonfinite(const StagedJob& job);
  Status FetchNonfinite(const StagedJob& job);

  struct UnderWay {
    StagedPiece piece;
    bool recorded;  // Its event.
  };

  Device& device_;
  DeviceMemory packed_;  // Room for one piece; stream order guards it.
  std::vector<std::unique_ptr<Event>> events_;
  std::size_t next_ = 0;  // Index of the next event to record.
  std::deque<UnderWay> under_way_;
  std::unique_ptr<Stream> stream_;  // Declared last, so it is destroyed first.
};

}  // namespace gradientflow
