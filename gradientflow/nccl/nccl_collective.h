#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/args.h"
#include "gradientflow/nccl/channels.h"
#include "gradientflow/observe/logger.h"

namespace gradientflow {

// Collectives by NCCL, for buffers in memory of a CUDA device. No call blocks
// on the device or on another rank. Each channel has a communicator and
// streams of its own, so that neither waits for the other. Calls of a channel
// run on the device in the order of Start(), and `done` runs once the host sees
// that a call has ended. Calls with a `feed` are refused, since all data must
// be there; so are bitwise operations (kUnimplemented), which NCCL does not
// have.
//
// The results differ from the executor's where NCCL decides: in the algorithm
// (the call's `algorithm` is ignored), the order of sums, and minima and maxima
// of NaN. 16-bit elements of three ranks or more are added up in float32 and
// rounded once, unless NcclArgs::sums says otherwise. bytes_sent() is what a
// ring would send, or what that sum does.
//
// NOT thread-safe: called by the thread that drives.
class NcclCollective final : public Collective {
 public:
  // To be called by all ranks together, with the same version of the library
  // everywhere. Blocks until they are connected. REQUIRES that all ranks will
  // call it: the caller has to make sure of that beforehand, because ranks wait
  // for one that does not.
  // Returns kDeadlineExceeded after init_seconds, kAborted if rank 0 could not
  // begin, kFailedPrecondition if NCCL took another device than args.device, or
  // the error of NCCL, the device, `broadcast` or `while_waiting`.
  static Result<std::unique_ptr<NcclCollective>> Create(NcclArgs args);
  // Calls Close().
  ~NcclCollective() override;

  // Gives up the communicators; the streams stay. Calls in flight end with
  // kAborted. Takes at most close_seconds plus abort_seconds. Returns whether
  // the device has finished all work of the calls. If not, the work on the
  // streams may never end.
  bool Close();

  int rank() const { return args_.rank; }
  int size() const { return args_.size; }
  // The buffers must be in memory of args.device. Their data must be ready, or
  // stream(call.channel) must have been told to wait for it.
  void Start(const CollectiveCall& call, Done done) override;
  bool TakesAhead() const override { return true; }
  void Passed(Channel channel) override {
    channels_.at(channel).Passed(&ended_);
  }
  bool Poll() override;
  std::size_t in_flight() const override {
    return ended_.size() + channels_.calls();
  }
  // Takes calls of the group of all ranks alone.
  bool Busy(GroupId, Channel channel) const override {
    return channels_.at(channel).calls() > 0;
  }
  std::uint64_t bytes_sent(GroupId, Channel channel) const override {
    return channels_.at(channel).bytes_sent();
  }

  // The stream that the calls of a channel begin on. Before Start(), or in
  // call.before, let it Wait() for the event after which the buffers are ready.
  Stream& stream(Channel channel) { return channels_.at(channel).before(); }
  // The stream on which NCCL works; see Join().
  Stream& wire(Channel channel) { return channels_.at(channel).wire(); }
  Status Join(Channel channel) override { return channels_.at(channel).Join(); }
  // Adds what the channel's calls have given to the device.
  void AddWork(Channel channel, WorkEnd* end) {
    channels_.at(channel).AddWork(end);
  }
  // Returns whether an abort has not come to its end. Until then NCCL may give
  // the device work of any call, also of one that has ended.
  bool aborting() const { return !channels_.abort_done(); }

  // Returns zeroed memory of the device for buffers of calls. NCCL has
  // allocated it, and reaches it without copies once it is registered. If NCCL
  // cannot allocate, the memory is ordinary, and the log says so once. It must
  // not outlive the device. Any thread, also during calls, which it may delay.
  Result<DeviceMemory> Allocate(std::size_t bytes);

  // Tells NCCL about memory of the device that calls will use again and again,
  // so that it can save copies. Has an effect from NCCL 2.19 on; OK without
  // effect before. The memory must stay until Deregister(), or until the
  // collective is gone. REQUIRES that no call is in flight.
  Status Register(void* data, std::size_t bytes);
  // That memory is about to be freed. REQUIRES that no call on it is in flight.
  void Deregister(const void* data);

  // Ends the collective. Aborts NCCL; when it has given the buffers back, or
  // after abort_seconds, every call in flight ends with `why` and the name of
  // the call. The first reason stays, unless it names no culprit.
  void Fail(const Status& why);
  // OK, or why it has ended. The other ranks do not learn of it by NCCL: the
  // owner must tell them.
  const Status& status() const { return status_; }

  // The oldest call of each channel.
  std::string OldestCall() const override;
  // status(), once it is known who has caused the failure.
  Status failure() const override {
    return state_ == State::kFailed ? status_ : Status();
  }

 private:
  enum class State : std::uint8_t { kOpen, kAborting, kFailed, kClosed };

  explicit NcclCollective(NcclArgs args);
  static CallGroup GroupOf(const NcclArgs& args);
  Status Open();
  Status CheckCall(const CollectiveCall& call) const;
  bool Advance();
  bool AdvanceQueues();
  void LookIfStanding();
  std::string Beside(const NcclQueue& queue) const;
  void FailHere(const Status& why);
  void BeginAbort(const Status& why);
  bool AdvanceAbort();
  void AwaitAbort();
  std::string Culprits() const;
  void Log(LogLevel level, const std::string& line) const;

  const NcclArgs args_;
  const CallGroup group_;
  NcclChannels channels_;
  DoneQueue ended_;

  State state_ = State::kOpen;
  Status status_;
  bool culprit_open_ = false;  // status_ names no culprit yet.
  Clock::Time aborting_since_{};
};

}  // namespace gradientflow
