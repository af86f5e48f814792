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
#include "gradientflow/nccl/lane.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// What a rank brings to its NCCL collectives. Pointers are borrowed and outlive
// them.
struct NcclArgs {
  std::shared_ptr<const NcclApi> api;  // LoadNccl().
  int rank = 0;
  int size = 1;
  Device* device = nullptr;  // Made current for every call of NCCL.
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;  // May be null.
  Logger* logger = nullptr;      // May be null.
  bool trace = false;            // One line per collective.

  // Gives rank 0's `bytes` bytes to all ranks, over a way of their own; called
  // once by every rank, in Create().
  std::function<Status(void* data, std::size_t bytes)> broadcast;
  // Ranks that are known to be gone, or are awaited, for messages: "rank 2 does
  // not answer"; empty if there are none. May be null.
  std::function<std::string()> culprits;
  // Called again and again while Create() or the destructor waits, and where
  // heartbeats go on; should block for a moment. An error ends the wait. Null:
  // the thread yields.
  std::function<Status()> while_waiting;
  // Called again and again while no call has ended for standing_seconds though
  // one is there that needs all ranks; may call Fail(). May be null.
  std::function<void()> on_standing;

  double init_seconds = 120;     // For all ranks to come to Create().
  double timeout_seconds = 600;  // Without any call ending. 0: for ever.
  double standing_seconds = 2;
  double close_seconds = 5;    // For a good end; then it is aborted.
  double abort_seconds = 5;    // For NCCL to give the buffers back.
  double culprit_seconds = 2;  // For `culprits` to say who broke NCCL.

  // For allreduces that convert or have gaps: bytes of the device, per channel,
  // that are there (and registered) from the beginning; more when needed.
  std::size_t staging_bytes = 0;
};

// Collectives over NCCL, for buffers in memory of a CUDA device. No call waits
// for the device or for another rank. Each channel has a communicator and a
// stream of its own, so that none waits for the other. Calls of a channel run
// on the device in the order of Start(); `done` runs once the host sees that.
// A call's `feed` is refused: all of it must be there. So is a bitwise
// operation (kUnimplemented), which NCCL has not.
//
// Differs from the executor in what NCCL decides: the algorithm (`algorithm` is
// not looked at), the order of sums, and minima and maxima of NaN.
// bytes_sent() is what a ring would send.
//
// NOT thread-safe, as its base says.
class NcclCollective final : public Collective {
 public:
  // On all ranks together, the same library version everywhere; blocks until
  // they are connected. REQUIRES that all ranks will call it: see to that
  // beforehand, since the others wait for one that does not.
  // kDeadlineExceeded after init_seconds, kAborted if rank 0 could not begin,
  // kFailedPrecondition if NCCL took another device than args.device; or what
  // NCCL, the device, `broadcast` or `while_waiting` report.
  static Result<std::unique_ptr<NcclCollective>> Create(NcclArgs args);
  // Close().
  ~NcclCollective() override;

  // Gives the communicators up; the streams stay. Ends calls that are in flight
  // with kAborted. Takes close_seconds and abort_seconds at most. Returns
  // whether the device works for no call any more; if not, the streams' work
  // may never end.
  bool Close();

  int rank() const override { return args_.rank; }
  int size() const override { return args_.size; }
  // Buffers must be of args.device, and what they need must have been waited
  // for by stream(call.channel), or be there.
  void Start(const CollectiveCall& call, Done done) override;
  bool Poll() override;
  std::size_t in_flight() const override;
  bool Busy(Channel channel) const override;
  std::uint64_t bytes_sent(Channel channel) const override;

  // Where the calls of a channel run. Before Start(), let it Wait() for the
  // event behind which the buffers are ready.
  Stream& stream(Channel channel) { return lane(channel).stream(); }

  // Tells NCCL of memory of the device that calls will use again and again, for
  // copies it can then spare; of use from NCCL 2.19 on, OK and without effect
  // before. The memory stays until Deregister(), or the collective is gone.
  // REQUIRES that no call is in flight.
  Status Register(void* data, std::size_t bytes);
  // That memory is about to go. REQUIRES that no call on it is in flight.
  void Deregister(const void* data);

  // Ends the collective: NCCL is aborted, and when it has given the buffers
  // back (or after abort_seconds) every call in flight ends with `why` and its
  // own name. The first reason stays, but for one that named no culprit.
  void Fail(const Status& why);
  // Why it has ended, or OK. Other ranks wait until they are told.
  const Status& status() const { return status_; }

  // Of each channel.
  std::string OldestCall() const override;
  // status(), once it is known who has caused it.
  Status failure() const override {
    return state_ == State::kFailed ? status_ : Status();
  }

 private:
  enum class State : std::uint8_t { kOpen, kAborting, kFailed, kClosed };

  explicit NcclCollective(NcclArgs args);
  NcclLane& lane(Channel channel) const {
    return *lanes_[static_cast<std::size_t>(channel)];
  }
  Status Open();
  Status OpenLanes();
  Status ShareIds(std::array<nccl::UniqueId, kChannels>* ids);
  Status CheckDevice();
  Status WaitUntil(const std::function<Result<bool>()>& there, double seconds,
                   const std::string& what);
  Status CheckCall(const CollectiveCall& call) const;
  bool Advance();
  bool AdvanceLanes();
  void LookIfStanding();
  void FailHere(const Status& why);
  void BeginAbort(const Status& why);
  bool AdvanceAbort();
  void AwaitAbort();
  bool Drained();
  std::string Culprits() const;
  bool RunEnded();
  Status CloseLanes();
  void Log(LogLevel level, const std::string& line) const;

  const NcclArgs args_;
  CallGroup group_;
  std::array<std::unique_ptr<NcclLane>, kChannels> lanes_;
  struct Registered {
    const void* data;
    void* handle;
  };
  std::vector<Registered> registered_[kChannels];
  std::vector<EndedCall> ended_;
  std::size_t next_ended_ = 0;  // Of ended_: those before it have been told.

  State state_ = State::kOpen;
  Status status_;
  bool culprit_open_ = false;  // status_ names none yet.
  Clock::Time aborting_since_{};
};

}  // namespace gradientflow
