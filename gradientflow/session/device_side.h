#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/staged.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/create.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "gradientflow/optimizer/device_optimizer.h"
#include "gradientflow/session/device_sync.h"
#include "gradientflow/session/places.h"
#include "transports/arena.h"

namespace gradientflow {

// The device that `options.device` asks for, which is not "cpu". "cuda" takes
// the host's GPUs in turn, by this rank's place among the ranks of its host.
Result<std::shared_ptr<Device>> OpenDevice(const Options& options,
                                           const CallGroup& group);

// Borrowed; outlives the DeviceSide.
struct DeviceSideParts {
  const Options* options = nullptr;
  const PoolLayout* layout = nullptr;
  std::vector<bool> skip_lars = {};
  SharedArena* arena = nullptr;  // Null if no peer shares memory.
  OpeningParts opening;
  const CallGroup* group = nullptr;
  Logger* logger = nullptr;
  Recorder* recorder = nullptr;
};

// What a session has more of when its gradients are in a device's memory: the
// pool, collectives that reach it (NCCL, or staged through the host), the order
// between backward and communication, and the optimiser.
class DeviceSide {
 public:
  // Of this rank alone: what the others must know, and the NCCL that was found
  // (null if none; why is logged).
  static Place PlaceOf(const Options& options, const Device& device,
                       Logger& logger, std::shared_ptr<const NcclApi>* nccl);

  // All ranks on a device call together.
  static Result<std::unique_ptr<DeviceSide>> Create(
      const DeviceSideParts& parts, std::shared_ptr<Device> device,
      std::shared_ptr<const NcclApi> nccl, const std::vector<Place>& places);
  ~DeviceSide();

  Device& device() { return *device_; }
  BufferView pool() const;
  bool by_nccl() const { return nccl_ != nullptr; }
  // What buckets are given to.
  Collective& collective();
  // What the collective's reads of a channel's buffers come after.
  Stream& stream(Channel channel);
  DeviceSync& sync() { return *sync_; }
  DeviceOptimizer& optimizer() { return *optimizer_; }
  // The job has failed: nothing may go on waiting.
  void Fail(const Status& why);
  // Ends what is in flight, and waits for the streams; only a few seconds if
  // the job has failed. The fabric and the aggregator are still there, and
  // nobody else drives them. False: the device may go on using memory of this,
  // of the aggregator and of the arena, so that none of them can be destroyed.
  bool Close();

 private:
  explicit DeviceSide(std::shared_ptr<Device> device)
      : device_(std::move(device)) {}
  Status MakeNccl(const DeviceSideParts& parts,
                  std::shared_ptr<const NcclApi> nccl);
  Status MakeStaged(const DeviceSideParts& parts);
  bool AwaitEnd(Stream& stream);
  bool Await(const Event& event);

  const std::shared_ptr<Device> device_;
  OpeningParts opening_;
  DeviceMemory pool_;
  std::size_t pool_bytes_ = 0;
  std::unique_ptr<NcclCollective> nccl_;  // One of these two.
  std::unique_ptr<StagedCollective> staged_;
  std::unique_ptr<DeviceSync> sync_;
  std::unique_ptr<DeviceOptimizer> optimizer_;
};

}  // namespace gradientflow
