#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/piece_stream.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/collectives/staging_memory.h"
#include "gradientflow/device/device.h"
#include "transports/arena.h"
#include "transports/fabric.h"

namespace gradientflow {

struct StagedOptions {
  // On the wire: what is converted and copied at a time.
  std::size_t piece_bytes = std::size_t{1} << 20;
  int pieces_in_flight = 8;  // Each way.
  // Page-locked host memory that calls in flight share: three quarters for
  // gradients, a quarter for plain calls, each allocated when first needed.
  // Calls wait for room in their order. A single call needs its bytes on the
  // wire in one piece, and if that is more, the memory grows to it.
  std::size_t staging_bytes = std::size_t{64} << 20;
  double abandon_seconds = 5;  // After a failure, for the device to be done.
};

// Borrowed; outlives the collective.
struct StagedParts {
  Collective* inner = nullptr;  // For host memory; whoever drives drives both.
  Device* device = nullptr;
  SharedArena* arena = nullptr;  // For staging; null: not shared.
  Fabric* fabric = nullptr;      // The inner collective's.
  const Clock* clock = nullptr;
  CallGroup group;  // By value.
};

// Collectives on buffers in a device's memory, over a collective that works in
// the host's: gradients are converted to the wire dtype on the device, copied
// to page-locked memory piece by piece while the inner allreduce already runs
// on those that are there, and copied back as their results come. The host
// waits for the device nowhere; all is done from Poll(). Calls of one channel
// reach the inner collective in their order, those on host memory among them,
// which are passed on as they are.
//
// An allreduce of gradients ends rounded to the wire dtype. Other calls are
// copied whole, as they are.
//
// What fails on the device ends the job on all ranks (Fabric::Fail) with an
// error that names rank, device, call, step and bucket. `done` runs when
// neither device nor peers use the call's buffers any more, after an error too:
// the work that the device was given is waited for, by looking, and after an
// error for abandon_seconds at most. NOT
// thread-safe, as its base says.
class StagedCollective final : public Collective {
 public:
  // kResourceExhausted, or the device's error.
  static Result<std::unique_ptr<StagedCollective>> Create(
      const StagedParts& parts, const StagedOptions& options);
  // Waits for the device: if left_behind(), perhaps for ever. REQUIRES
  // in_flight() == 0, or that the inner collective is not driven any more.
  ~StagedCollective() override;

  // Calls read their buffers after all that this stream was given before
  // Start(). Carries no work but the caller's.
  Stream& stream() { return *gate_; }

  int rank() const override { return parts_.group.rank; }
  int size() const override { return parts_.group.size; }
  // At `done` the result is in the device's memory. kInvalidArgument (in
  // `done`) for a call with a feed on device memory.
  void Start(const CollectiveCall& call, Done done) override;
  // Does not poll the inner collective.
  bool Poll() override;
  // Here and in the inner collective.
  std::size_t in_flight() const override;
  bool Busy(Channel channel) const override;
  std::uint64_t bytes_sent(Channel channel) const override {
    return parts_.inner->bytes_sent(channel);
  }

  std::string OldestCall() const override;

  // The device was not done in time after a failure: it may still use the
  // buffers of calls that have ended, and the staging.
  bool left_behind() const { return left_behind_; }

  // Page-locked memory allocated so far.
  std::size_t staging_bytes() const;

 private:
  using Jobs = std::vector<std::unique_ptr<StagedJob>>;
  struct Ended {
    Done done;
    std::uint32_t flags;
    Status status;
  };

  StagedCollective(const StagedParts& parts, const StagedOptions& options);
  Status Build();
  bool OnDevice(const void* buffer, std::size_t elements) const;
  Status Enter(const CollectiveCall& call, Done done);
  Result<std::unique_ptr<StagedJob>> NewJob();
  Status Prepare(StagedJob* job);
  StagedSide SideOf(const StagedJob& job, bool of_input) const;
  CollectiveCall InnerCall(StagedJob* job) const;
  Status Admit(StagedJob* job);
  Result<std::uint32_t*> NonfiniteWord(const StagedJob& job);

  bool AdmitJobs();
  bool BeginJobs();
  bool SendOut();
  bool SendIn();
  bool LookAt(PieceStream* pieces, bool out);
  void OutDone(const StagedPiece& piece);
  bool CloseJobs();
  bool IsOver(const StagedJob& job) const;
  void Fail(StagedJob* job, const char* doing, const Status& why);
  void Abandon(const Status& why);
  void LeaveBehindIfLate();
  bool RunEnded();
  static void OnInnerDone(void* self, std::uint64_t job, std::uint32_t flags,
                          const Status& status);

  const StagedParts parts_;
  const StagedOptions options_;
  std::array<StagingMemory, kChannels> staging_;
  std::vector<DeviceMemory> words_;  // StagedJob::nonfinite, many at a time.
  Jobs jobs_;                        // In the order of Start().
  Jobs spare_;
  Jobs left_;  // See left_behind(); ended.
  std::size_t jobs_made_ = 0;
  std::size_t in_inner_ = 0;  // Jobs whose inner call is under way.
  std::deque<StagedPiece> ready_in_;
  std::deque<Ended> ended_;
  bool broken_ = false;  // The device, or what was asked of it, failed.
  std::optional<Clock::Time> abandoned_at_;
  bool left_behind_ = false;
  std::unique_ptr<PieceStream> out_;
  std::unique_ptr<PieceStream> in_;
  std::unique_ptr<Stream> gate_;
};

}  // namespace gradientflow
