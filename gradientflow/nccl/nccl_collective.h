#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/nccl/queue.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// What a rank brings to its NCCL collectives. Pointers are borrowed and outlive
// the collectives.
struct NcclArgs {
  std::shared_ptr<const NcclApi> api;  // From LoadNccl().
  int rank = 0;
  int size = 1;
  Device* device = nullptr;  // Made current for every call of NCCL.
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;  // May be null.
  Logger* logger = nullptr;      // May be null.
  bool trace = false;            // One line per collective.

  // Gives rank 0's `bytes` bytes to all ranks, by other means than NCCL.
  // Create() calls it once on every rank.
  std::function<Status(void* data, std::size_t bytes)> broadcast;
  // Returns the ranks that are known to be gone, or that are awaited, for
  // messages: "rank 2 does not answer"; empty if there are none. May be null.
  std::function<std::string()> culprits;
  // Called again and again while Create() or the destructor waits. Keeps
  // heartbeats going, and should block for a moment. An error ends the wait. If
  // null, the thread yields instead.
  std::function<Status()> while_waiting;
  // Called again and again while no call has ended for standing_seconds
  // although one is there that needs all ranks. May call Fail(). May be null.
  std::function<void()> on_standing;

  double init_seconds = 120;     // For all ranks to come to Create().
  double timeout_seconds = 600;  // Without any call ending; 0: for ever.
  double standing_seconds = 2;
  double close_seconds = 5;    // To close in good order; then it is aborted.
  double abort_seconds = 5;    // For NCCL to give the buffers back.
  double culprit_seconds = 2;  // For `culprits` to say who broke NCCL.

  // Which side adds up 16-bit elements of more than two ranks. The same on all
  // ranks.
  NcclSums sums = NcclSums::kFloat32;
  // Make the first staging memory a symmetric window where NCCL has such. The
  // same on all ranks.
  bool windows = true;
  // Staging memory on the device for allreduces that convert or have gaps, and
  // for sums that we add up ourselves, in bytes per channel. It is allocated
  // and registered from the start, and grows when needed.
  std::size_t staging_bytes = 0;
};

// Collectives by NCCL, for buffers in memory of a CUDA device. No call blocks
// on the device or on another rank. Each channel has a communicator and a
// stream of its own, so that neither waits for the other. Calls of a channel
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
// NOT thread-safe, as its base says.
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
  void Passed(Channel channel) override { queue(channel).Passed(&ended_); }
  bool Poll() override;
  std::size_t in_flight() const override;
  // Takes calls of the group of all ranks alone.
  bool Busy(GroupId, Channel channel) const override {
    return queue(channel).calls() > 0;
  }
  std::uint64_t bytes_sent(GroupId, Channel channel) const override {
    return queue(channel).bytes_sent();
  }

  // The stream that the calls of a channel run on. Before Start(), let it
  // Wait() for the event after which the buffers are ready.
  Stream& stream(Channel channel) { return queue(channel).stream(); }

  // Returns zeroed memory of the device for buffers of calls, which NCCL
  // reaches without copies once it is registered. It must not outlive the
  // device. Any thread, also during calls, which it may delay.
  Result<DeviceMemory> Allocate(std::size_t bytes);

  // Tells NCCL about memory of the device that calls will use again and again,
  // so that it can save copies. Has an effect from NCCL 2.19 on; OK without
  // effect before. The memory must stay until Deregister(), or until the
  // collective is gone. REQUIRES that no call is in flight.
  Status Register(void* data, std::size_t bytes);
  // That memory is about to be freed. REQUIRES that no call on it is in flight.
  void Deregister(const void* data);

  // Ends the collective. NCCL is aborted; when it has given the buffers back,
  // or after abort_seconds, every call in flight ends with `why` and its own
  // name. The first reason stays, unless it named no culprit.
  void Fail(const Status& why);
  // OK, or why it has ended. Other ranks wait until they are told.
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
  NcclQueue& queue(Channel channel) const {
    return *queues_[static_cast<std::size_t>(channel)];
  }
  Status Open();
  Status OpenQueues();
  Status ShareIds(std::array<nccl::UniqueId, kChannels>* ids);
  Status CheckDevice();
  Status WaitUntil(const std::function<Result<bool>()>& there, double seconds,
                   const std::string& what);
  Status CheckCall(const CollectiveCall& call) const;
  bool Advance();
  bool AdvanceQueues();
  void LookIfStanding();
  void FailHere(const Status& why);
  void BeginAbort(const Status& why);
  bool AdvanceAbort();
  void AwaitAbort();
  bool Drained();
  std::string Culprits() const;
  Status CloseQueues();
  void Log(LogLevel level, const std::string& line) const;

  const NcclArgs args_;
  CallGroup group_;
  std::array<std::unique_ptr<NcclQueue>, kChannels> queues_;
  struct Registered {
    const void* data;
    void* handle;
  };
  std::vector<Registered> registered_[kChannels];
  DoneQueue ended_;

  State state_ = State::kOpen;
  Status status_;
  bool culprit_open_ = false;  // status_ names no culprit yet.
  Clock::Time aborting_since_{};
};

}  // namespace gradientflow
