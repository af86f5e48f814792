#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "gradientflow/base/clock.h"
#include "gradientflow/buckets/tuning.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/calls.h"
#include "gradientflow/communicator/completions.h"
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

// Ids of groups from here on are the library's own.
inline constexpr GroupId kFirstOwnGroup = GroupId{1} << 31;

// What a communicator is made of, once its ranks are joined. The parts are here
// for the sessions on it; its users see Communicator.
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
  // What does not depend on the other ranks.
  struct Parts {
    Options options;
    std::unique_ptr<Clock> clock;
    std::unique_ptr<Logger> logger;
    std::unique_ptr<Recorder> recorder;
    std::function<void()> drain_recorder;  // May be empty.
    // In place of what the options ask for; may be null.
    std::shared_ptr<Device> device;
  };
  // Checks the options, and opens the log and the timeline.
  static Result<Parts> MakeParts(const Options& options);

  // All ranks of `transport` call.
  static Result<std::unique_ptr<CommunicatorCore>> Create(Parts parts,
                                                          Transport transport);
  // Leaves the job; blocks shortly.
  ~CommunicatorCore();
  CommunicatorCore(const CommunicatorCore&) = delete;
  CommunicatorCore& operator=(const CommunicatorCore&) = delete;

  const Options& options() const { return options_; }
  const CallGroup& group() const { return transport_.group; }
  const Clock& clock() const { return *clock_; }
  Logger& logger() const { return *logger_; }
  Recorder& recorder() const { return *recorder_; }
  Fabric& fabric() const { return *transport_.fabric; }
  SharedArena* arena() const { return transport_.arena; }  // May be null.
  Executor& executor() const { return *executor_; }
  // Null: buffers are the host's.
  DevicePath* device() const { return device_path_.get(); }
  Progress& progress() const { return *progress_; }
  Driver& driver() const { return *driver_; }
  Calls& calls() const { return *calls_; }

  // Ends the job on every rank with `why`, in this rank's name.
  void Abort(const Status& why);
  // With the baton held: the same at once, with `why` as it is.
  void Fail(const Status& why);

  // Memory of the arena, until it is given back.
  Result<BufferView> AllocateShared(std::size_t bytes);
  void FreeShared(const std::byte* data);

  // What the links of this job do. The first call measures, and is a
  // collective: all ranks make it in the same place among their plain calls.
  Result<MeasuredCosts> Costs();

  // The gradient channel of a group serves one session at a time. Whether it is
  // free here; takes it; gives it back.
  bool GradientsAreFree(GroupId group);
  void TakeGradients(GroupId group);
  void LeaveGradients(GroupId group);
  // The least id from kFirstOwnGroup on that was not taken here; and that one
  // is taken, with all below it.
  GroupId NextOwnGroup();
  void OwnGroupTaken(GroupId id);

 private:
  CommunicatorCore(Parts parts, Transport transport);
  Status Build();
  Status OpenDevicePath();
  void CloseDevicePath();
  Status MeasureIfNeeded();

  const Options options_;
  const std::unique_ptr<Clock> clock_;
  const std::unique_ptr<Logger> logger_;
  const std::unique_ptr<Recorder> recorder_;
  const std::function<void()> drain_recorder_;
  std::shared_ptr<Device> device_;
  Transport transport_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DevicePath> device_path_;
  std::unique_ptr<Messages> messages_;
  std::unique_ptr<Driver> driver_;
  Completions completions_;  // Touched with the baton held.
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Calls> calls_;
  std::optional<MeasuredCosts> costs_;
  // Touched with the baton held.
  std::map<const std::byte*, PoolMemory> shared_;
  std::set<GroupId> gradients_taken_;
  GroupId next_own_group_;
};

}  // namespace gradientflow
