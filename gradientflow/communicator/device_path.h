#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/staged.h"
#include "gradientflow/communicator/driver.h"
#include "gradientflow/communicator/opening.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"
#include "gradientflow/device/work_end.h"
#include "gradientflow/nccl/create.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "transports/arena.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Opens the device that `options.device` asks for, which must not be "cpu".
// With "cuda" the ranks of a host take its GPUs in turn, in rank order;
// `local_rank` is this rank's number among them.
Result<std::shared_ptr<Device>> OpenDevice(const Options& options,
                                           int local_rank);

// All are borrowed, and outlive the DevicePath.
struct DevicePathArgs {
  const Options* options = nullptr;
  SharedArena* arena = nullptr;  // Null if no peer shares memory.
  // Null if the network card writes to no peer's memory.
  RemotePlaces* places = nullptr;
  OpeningArgs opening;
  const CallGroup* group = nullptr;  // The group of all ranks.
  Logger* logger = nullptr;
  Recorder* recorder = nullptr;
};

// A communicator's collectives on a device's memory, by NCCL or staged through
// host memory and the executor. Also keeps the order between the work that a
// caller has submitted to its stream and the calls that read its buffers.
// NOT thread-safe: called by the holder of the baton.
class DevicePath final : public Driver::Client {
 public:
  // Returns the facts about this rank that other ranks need, and in `nccl` the
  // NCCL library, or null if there is none; the log says why.
  static RankFacts FactsOf(const Options& options, const Device& device,
                           Logger& logger,
                           std::shared_ptr<const NcclApi>* nccl);

  // To be called by all ranks on a device together. `ranks` are the facts of
  // all ranks, by rank.
  static Result<std::unique_ptr<DevicePath>> Create(
      const DevicePathArgs& args, std::shared_ptr<Device> device,
      std::shared_ptr<const NcclApi> nccl, const std::vector<RankFacts>& ranks);
  ~DevicePath() override;

  const std::shared_ptr<Device>& device() const { return device_; }
  bool by_nccl() const { return nccl_ != nullptr; }
  // Takes calls on the device's memory.
  Collective& collective();
  // Buffers of the channel are read after all work on this stream.
  Stream& stream(Channel channel);
  // What is given to this stream after collective().Join() runs after the calls
  // of the channel. With staging it is the same stream.
  Stream& wire(Channel channel);
  // Adds what the channel's calls have given to the device.
  void AddWork(Channel channel, WorkEnd* end);
  // True if NCCL may give the device work of calls that have ended.
  bool aborting() const { return nccl_ != nullptr && nccl_->aborting(); }
  // To be asked after each end.Reached() that has returned false. Returns true
  // if the job has failed, or the device has not told whether its work has
  // ended, for patience_seconds_, of which *since keeps the beginning. Then
  // the memory has to be kept.
  bool GivesUp(const WorkEnd& end, std::optional<Clock::Time>* since) const;
  // Says in the log that `what` is kept.
  void LogKept(const std::string& what, const WorkEnd& end) const;
  // Orders plain calls after the caller's stream.
  DeviceSync& sync() { return *sync_; }

  // Starts a plain call: here if its buffers are in the device's memory, in the
  // executor if they are in the host's. The choice must be the same on all
  // ranks. If it returns an error, the call was not started and `done` does not
  // run. REQUIRES what Collective::Start() requires.
  Status Start(const CollectiveCall& call, Done done);

  // Returns zeroed memory of the device for buffers of calls, from NCCL if that
  // carries them. It must not outlive the device. Any thread.
  Result<DeviceMemory> Allocate(std::size_t bytes);
  // Registers memory of the device that calls will use again and again, and
  // deregisters it: with NCCL, or with the network card. The log says how, or
  // why that is not possible and what the calls do instead.
  void Register(void* data, std::size_t bytes);
  void Deregister(void* data);

  // Ends what is in flight and waits for the streams, until GivesUp(). The
  // fabric still exists, and no other thread drives. Returns false if the
  // device may go on using memory of this object or of the arena; then neither
  // may be destroyed. The log says so.
  bool Close();

  // From Driver::Client. A failure on the device ends the job on all ranks.
  bool Poll() override;
  bool Pending() const override { return false; }  // See in_flight().
  bool HasToHear() const override { return !heard_; }
  std::uint64_t moves() const override { return moves_; }
  std::chrono::nanoseconds Nap(std::chrono::nanoseconds idle) const override;

 private:
  explicit DevicePath(std::shared_ptr<Device> device)
      : device_(std::move(device)) {}
  Status MakeNccl(const DevicePathArgs& args,
                  std::shared_ptr<const NcclApi> nccl);
  Status MakeStaged(const DevicePathArgs& args);
  bool EndCalls();
  bool Await(WorkEnd* end);
  Result<bool> Reaches(const CollectiveCall& call,
                       const CallGroup& group) const;
  bool GoesToDeviceEmpty(const CollectiveCall& call,
                         const CallGroup& group) const;

  const std::shared_ptr<Device> device_;
  OpeningArgs opening_;
  Logger* logger_ = nullptr;
  RemotePlaces* places_ = nullptr;  // Null unless all ranks have places.
  std::set<const void*> attached_;
  std::string refused_;  // Why memory could not be attached, as was logged.
  // How long this rank waits for the device once the job has failed: five
  // seconds, or timeout_seconds if that is less, but at least one second. (A
  // stream never ends its work if it waits for another library that waits for a
  // dead rank.)
  double patience_seconds_ = 0;
  std::uint64_t moves_ = 0;               // Polls that moved something.
  bool heard_ = false;                    // That the job has failed.
  std::unique_ptr<NcclCollective> nccl_;  // One of these two is null.
  std::unique_ptr<StagedCollective> staged_;
  std::unique_ptr<DeviceSync> sync_;
};

}  // namespace gradientflow
