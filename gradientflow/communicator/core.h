#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "gradientflow/base/clock.h"
#include "gradientflow/buckets/tuning.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/calls.h"
#include "gradientflow/communicator/completions.h"
#include "gradientflow/communicator/cores.h"
#include "gradientflow/communicator/device_path.h"
#include "gradientflow/communicator/driver.h"
#include "gradientflow/communicator/messages.h"
#include "gradientflow/communicator/pool_memory.h"
#include "gradientflow/communicator/progress.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/device.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// Group ids from here on belong to the library itself.
inline constexpr GroupId kFirstOwnGroup = GroupId{1} << 31;

// What a communicator consists of once its ranks have joined. The parts are
// accessible to its sessions; users see Communicator.
//
//   calls      tickets, completions          any thread
//   progress   who drives                    any thread
//   driver     one round of work             with the baton held, and all below
//   device     collectives on a GPU's memory
//   executor   collectives on the host's memory
//   messages   sends and receives
//   fabric     links to the other ranks
class CommunicatorCore {
 public:
  // The parts that do not depend on the other ranks.
  struct Args {
    Options options;
    std::unique_ptr<Clock> clock;
    std::unique_ptr<Logger> logger;
    std::unique_ptr<Recorder> recorder;
    std::function<void()> drain_recorder;  // May be empty.
    // Replaces the device that the options ask for; may be null.
    std::shared_ptr<Device> device;
  };
  // Checks the options, and opens the log and the timeline.
  static Result<Args> MakeArgs(const Options& options);

  // All ranks of `transport` make this call.
  static Result<std::unique_ptr<CommunicatorCore>> Create(Args args,
                                                          Transport transport);
  // Leaves the job; blocks for a short time.
  ~CommunicatorCore();
  CommunicatorCore(const CommunicatorCore&) = delete;
  CommunicatorCore& operator=(const CommunicatorCore&) = delete;

  const Options& options() const { return options_; }
  const CallGroup& group() const { return executor_->group(); }
  const Clock& clock() const { return *clock_; }
  Logger& logger() const { return *logger_; }
  Recorder& recorder() const { return *recorder_; }
  Fabric& fabric() const { return *transport_.fabric; }
  // Each may be null.
  SharedArena* arena() const { return transport_.arena; }
  RemotePlaces* places() const { return transport_.places; }
  WriteCounter* writes() const { return transport_.writes; }
  Executor& executor() const { return *executor_; }
  // Null if all buffers are in host memory.
  DevicePath* device() const { return device_path_.get(); }
  Progress& progress() const { return *progress_; }
  Driver& driver() const { return *driver_; }
  Calls& calls() const { return *calls_; }
  // How long threads of this rank busy-wait before they sleep.
  std::chrono::nanoseconds spin() const { return spin_; }
  // This rank's share of the host's cores, at least 1.
  int cores() const { return cores_; }
  // This rank among those of its host.
  const LocalPlace& local() const { return local_; }

  // Ends the job on every rank with `why`; the error names this rank.
  void Abort(const Status& why);
  // The same at once, with `why` unchanged. REQUIRES that the caller holds the
  // baton.
  void Fail(const Status& why);

  // Returns memory of the arena, until it is freed.
  Result<BufferView> AllocateShared(std::size_t bytes);
  void FreeShared(const std::byte* data);

  // The measured speed of a whole allreduce on the memory where pools are, of
  // elements of `pool` that travel as `wire`. The first call for such types
  // measures, and is a collective: all ranks make it at the same place among
  // their plain calls.
  Result<CallCost> MeasuredCallCost(DType pool, DType wire);

  // The gradient channel of a group serves one session at a time. These tell
  // whether it is free on this rank, take it, and give it back.
  bool GradientsAreFree(GroupId group);
  void TakeGradients(GroupId group);
  void LeaveGradients(GroupId group);
  // NextOwnGroup() returns the lowest id from kFirstOwnGroup on that has not
  // been taken on this rank. OwnGroupTaken() takes `id` and all ids below it.
  GroupId NextOwnGroup();
  void OwnGroupTaken(GroupId id);

 private:
  CommunicatorCore(Args args, Transport transport);
  Status Build();
  Status LearnAddresses();
  Status OpenDevicePath();
  void ShareNoMemory(int culprit);
  void PlaceNothing(int culprit);
  void CloseDevicePath();
  void TellWhy(const Status& why);
  Status MeasureBetweenHosts();

  const Options options_;
  const std::unique_ptr<Clock> clock_;
  const std::unique_ptr<Logger> logger_;
  const std::unique_ptr<Recorder> recorder_;
  const std::function<void()> drain_recorder_;
  std::shared_ptr<Device> device_;
  Transport transport_;
  const LocalPlace local_;
  const int cores_;
  const std::chrono::nanoseconds spin_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DevicePath> device_path_;
  std::unique_ptr<Messages> messages_;
  std::unique_ptr<Driver> driver_;
  Completions completions_;  // Guarded by the baton.
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Calls> calls_;
  std::map<std::pair<DType, DType>, CallCost> call_costs_;
  // Guarded by the baton.
  std::map<const std::byte*, PoolMemory> shared_;
  std::set<GroupId> gradients_taken_;
  GroupId next_own_group_;
};

}  // namespace gradientflow
