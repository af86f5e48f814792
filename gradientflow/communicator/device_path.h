#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/staged.h"
#include "gradientflow/communicator/places.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"
#include "gradientflow/nccl/create.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "transports/arena.h"

namespace gradientflow {

// The device that `options.device` asks for, which is not "cpu". "cuda" takes
// the host's GPUs in turn, by this rank's place among the ranks of its host.
Result<std::shared_ptr<Device>> OpenDevice(const Options& options,
                                           const CallGroup& group);

// Borrowed; outlives the DevicePath.
struct DevicePathParts {
  const Options* options = nullptr;
  SharedArena* arena = nullptr;  // Null if no peer shares memory.
  OpeningParts opening;
  const CallGroup* group = nullptr;  // That of all ranks.
  Logger* logger = nullptr;
  Recorder* recorder = nullptr;
};

// A communicator's collectives on a device's memory: by NCCL, or staged through
// the host's memory and the executor; and the order between what a caller has
// submitted to its stream and those that read its buffers.
// NOT thread-safe: the baton's holder calls.
class DevicePath {
 public:
  // What the other ranks must know of this one, and the NCCL that was found
  // (null if none; the log says why).
  static Place PlaceOf(const Options& options, const Device& device,
                       Logger& logger, std::shared_ptr<const NcclApi>* nccl);

  // All ranks on a device call together. `places`: of all ranks, by rank.
  static Result<std::unique_ptr<DevicePath>> Create(
      const DevicePathParts& parts, std::shared_ptr<Device> device,
      std::shared_ptr<const NcclApi> nccl, const std::vector<Place>& places);
  ~DevicePath();

  const std::shared_ptr<Device>& device() const { return device_; }
  bool by_nccl() const { return nccl_ != nullptr; }
  // Takes calls on the device's memory.
  Collective& collective();
  // The stream behind which a channel's buffers are read.
  Stream& stream(Channel channel);
  // Orders plain calls after the caller's stream.
  DeviceSync& sync() { return *sync_; }

  // Starts a plain call on whatever memory: the device's here, the host's in
  // the executor. Which of the two takes a call must not differ between ranks.
  void Start(const CollectiveCall& call, Done done);

  // Memory of the device that calls will use again and again, and its end.
  void Register(void* data, std::size_t bytes);
  void Deregister(const void* data);

  // The job has failed: nothing may go on waiting.
  void Fail(const Status& why);
  // Ends what is in flight, and waits for the streams; a few seconds at most
  // if the job has failed. The fabric is still there, and nobody else drives.
  // False: the device may go on using memory of this and of the arena, so that
  // neither can be destroyed.
  bool Close();

 private:
  explicit DevicePath(std::shared_ptr<Device> device)
      : device_(std::move(device)) {}
  Status MakeNccl(const DevicePathParts& parts,
                  std::shared_ptr<const NcclApi> nccl);
  Status MakeStaged(const DevicePathParts& parts);
  bool AwaitEnd(Stream& stream);
  bool Await(const Event& event);
  bool Reaches(const CollectiveCall& call, const CallGroup& group) const;
  bool GoesToDeviceEmpty(const CollectiveCall& call,
                         const CallGroup& group) const;

  const std::shared_ptr<Device> device_;
  OpeningParts opening_;
  Logger* logger_ = nullptr;
  std::unique_ptr<NcclCollective> nccl_;  // One of these two.
  std::unique_ptr<StagedCollective> staged_;
  std::unique_ptr<DeviceSync> sync_;
};

}  // namespace gradientflow
