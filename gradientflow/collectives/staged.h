#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/staged_copies.h"
#include "gradientflow/collectives/staged_job.h"
#include "gradientflow/collectives/staged_memory.h"
#include "gradientflow/device/device.h"
#include "gradientflow/observe/logger.h"
#include "transports/arena.h"
#include "transports/fabric.h"
#include "transports/remote_places.h"

namespace gradientflow {

struct StagedOptions {
  // Bytes on the wire that are converted and copied at a time.
  std::size_t piece_bytes = std::size_t{1} << 20;
  int pieces_in_flight = 8;  // In each direction.
  // Page-locked host memory that the calls in flight share: three quarters for
  // gradients and one quarter for plain calls, each allocated at its first use.
  // Calls wait for room in their order. A single call needs its wire bytes in
  // one piece; if they are more than that, the memory grows. If the network
  // card reaches the device's memory, as much of that is used for images.
  std::size_t staging_bytes = std::size_t{64} << 20;
  // How long to wait for the device after a failure.
  double abandon_seconds = 5;
};

// All are borrowed, and outlive the collective, except for `group`.
struct StagedArgs {
  Collective* inner = nullptr;  // For host memory; its owner polls it, too.
  Device* device = nullptr;
  SharedArena* arena = nullptr;  // For staging; null if no memory is shared.
  // What the network card reaches: for staging, and to do without it. Null if
  // it reaches nothing.
  RemotePlaces* places = nullptr;
  Fabric* fabric = nullptr;  // That of the inner collective.
  const Clock* clock = nullptr;
  Logger* logger = nullptr;  // May be null.
  CallGroup group;           // A copy.
};

// Collectives on buffers in a device's memory, over a collective on the host's
// memory. Gradients are converted to the wire dtype on the device and copied to
// page-locked memory piece by piece. The inner allreduce already runs on the
// pieces that have arrived, and its results are copied back as they come. The
// host never blocks on the device: all work is done from Poll(). Calls of one
// channel reach the inner collective in their order. That includes calls on
// host memory, which are passed on unchanged.
//
// An allreduce of gradients ends rounded to the wire dtype. Other calls are
// copied whole and unchanged.
//
// If the network card reaches the device's memory, and the inner collective
// places the messages of an allreduce of gradients, then peers are sent the
// bytes in the device's memory, and write their sums to it: to the buffer
// itself if it is gapless and in the wire dtype, else to a packed image of it.
// Only this rank's own block of each segment is copied to the host, which adds
// the peers' blocks to it, and the sum is copied back.
//
// A failure on the device ends the job on all ranks (Fabric::Fail) with an
// error that names rank, device, call, step and bucket. `done` runs when
// neither the device nor peers use the call's buffers any more, also after an
// error: the collective polls until the work given to the device is done, but
// after an error for at most abandon_seconds.
// NOT thread-safe: called by the thread that drives.
class StagedCollective final : public Collective {
 public:
  // Returns kResourceExhausted, or the error of the device.
  static Result<std::unique_ptr<StagedCollective>> Create(
      const StagedArgs& args, const StagedOptions& options);
  // Waits for the device, which may take for ever if left_behind(). REQUIRES
  // in_flight() == 0, or that the inner collective is not driven any more.
  ~StagedCollective() override;

  // Calls read their buffers after all work that this stream was given before
  // Start(). It carries only work of the caller.
  Stream& stream() { return *gate_; }
  // Adds what calls have given to the device.
  void AddWork(WorkEnd* end) {
    end->Add(*gate_);
    copies_->AddWork(end);
  }

  // When `done` runs, the result is in the device's memory. `done` gets
  // kInvalidArgument for a call with a feed on device memory.
  void Start(const CollectiveCall& call, Done done) override;
  // Does not poll the inner collective.
  bool Poll() override;
  // Counts calls here and in the inner collective.
  std::size_t in_flight() const override;
  bool Busy(GroupId group, Channel channel) const override;
  std::uint64_t bytes_sent(GroupId group, Channel channel) const override {
    return args_.inner->bytes_sent(group, channel);
  }

  std::string OldestCall() const override;

  // True if the device was not done in time after a failure. It may then still
  // use the staging memory and the buffers of calls that have ended.
  bool left_behind() const { return left_behind_; }

  // Bytes of page-locked memory allocated so far, which tests hold to a bound.
  std::size_t staging_bytes() const { return memory_.staging_bytes(); }

 private:
  using Jobs = StagedCopies::Jobs;

  StagedCollective(const StagedArgs& args, const StagedOptions& options);
  Status Build();
  bool OnDevice(const void* buffer, std::size_t elements) const;
  Status Enter(const CollectiveCall& call, Done done);
  Result<std::unique_ptr<StagedJob>> NewJob();
  Status Prepare(StagedJob* job);
  bool GoesDirect(StagedJob* job);
  StagedSide SideOf(const StagedJob& job, bool of_input) const;
  CollectiveCall InnerCall(StagedJob* job) const;

  bool AdmitJobs();
  bool BeginJobs();
  bool CloseJobs();
  bool IsOver(const StagedJob& job) const;
  void AwaitRemoteWrites();
  void Fail(StagedJob* job, const char* doing, const Status& why);
  void Abandon(const Status& why);
  void LeaveBehindIfLate();
  static void OnInnerDone(void* self, std::uint64_t job, std::uint32_t flags,
                          const Status& status);

  const StagedArgs args_;
  const StagedOptions options_;
  StagedMemory memory_;
  Jobs jobs_;  // In the order of Start().
  Jobs spare_;
  Jobs left_;  // Ended, but left_behind() on the device.
  std::size_t jobs_made_ = 0;
  std::size_t in_inner_ = 0;  // Jobs whose inner call is under way.
  DoneQueue ended_;
  std::optional<Clock::Time> abandoned_at_;
  bool left_behind_ = false;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<Stream> gate_;
};

}  // namespace gradientflow
