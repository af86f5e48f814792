#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/piece_stream.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/work_end.h"

namespace gradientflow {

// Copies the pieces of staged jobs between the device and its staging memory,
// on a stream for each direction. The host never blocks on the device.
// NOT thread-safe.
class StagedCopies {
 public:
  using Jobs = std::vector<std::unique_ptr<StagedJob>>;
  // What copying has failed at: the text is "copying it out", or in.
  using OnFailed =
      std::function<void(StagedJob* job, const char* doing, const Status& why)>;

  // `pieces` of `piece_bytes` are under way in each direction. `device`
  // outlives the result.
  static Result<std::unique_ptr<StagedCopies>> Create(Device& device,
                                                      int pieces,
                                                      std::size_t piece_bytes,
                                                      OnFailed on_failed);

  // The pieces that the host has finished; jobs add theirs.
  std::deque<StagedPiece>* ready_in() { return &ready_in_; }
  // Takes note of the copies that the device has done.
  bool Look();
  // Give the device what is there: of the jobs, in their order, and of
  // ready_in().
  bool SendOut(const Jobs& jobs);
  bool SendIn();
  // Nothing more of this job, or of any job, is copied in.
  void Forget(const StagedJob* job);
  void ForgetAll() { ready_in_.clear(); }
  // The device has failed, and gets nothing more to do.
  void Stop() { stopped_ = true; }
  // Adds what the device has been given.
  void AddWork(WorkEnd* end) {
    end->Add(out_->stream());
    end->Add(in_->stream());
  }

 private:
  explicit StagedCopies(OnFailed on_failed)
      : on_failed_(std::move(on_failed)) {}
  bool LookAt(PieceStream* pieces, bool out);

  const OnFailed on_failed_;
  std::unique_ptr<PieceStream> out_;
  std::unique_ptr<PieceStream> in_;
  std::deque<StagedPiece> ready_in_;
  bool stopped_ = false;
};

}  // namespace gradientflow
