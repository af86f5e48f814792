#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"
#include "gradientflow/device/work_end.h"
#include "gradientflow/optimizer/device_optimizer.h"
#include "gradientflow/session/gradient_pool.h"

namespace gradientflow {

// Gradients in the memory of the communicator's device. Buckets are sent by
// NCCL or staged in host memory, and the optimiser runs on the stream that
// computes.
class DevicePool final : public GradientPool {
 public:
  static Result<std::unique_ptr<GradientPool>> Create(
      const GradientPoolArgs& args);
  ~DevicePool() override;

  BufferView view() const override;
  Status Zero(const BufferView& part) override {
    return sync_->Zero(part.data, part.bytes);
  }
  // Returns kUnimplemented, except for the group of all ranks.
  Status CheckGroup(GroupId group) const override;
  Collective& collective() override { return path().collective(); }
  Handover& handover() override { return *handover_; }
  Status SetStream(void* native) override { return sync_->SetProducer(native); }
  Result<CscMemories> NewCscMemories() override;
  StepEnd* end() override { return end_.get(); }
  WireTimes* wire_times() override { return wire_times_.get(); }
  Status Update(std::size_t index, const OptimizerGroup& group,
                const Sent& sent) override;
  Result<std::span<const float>> Momentum(std::vector<float>* scratch) override;
  std::size_t momentum_bytes() const override {
    return optimizer_->momentum_bytes();
  }
  Status RestoreMomentum(std::span<const std::byte> momentum) override;
  bool Close() override;

 private:
  explicit DevicePool(const GradientPoolArgs& args) : args_(args) {}
  Status Build();
  DevicePath& path() const { return *args_.core->device(); }

  Result<DeviceMemory> AllocateForWire(std::size_t bytes);

  const GradientPoolArgs args_;
  std::size_t bytes_ = 0;
  DeviceMemory memory_;
  // Other memory that NCCL knows. Held here, because it is deregistered first.
  std::vector<DeviceMemory> for_wire_;
  // For CSC beside NCCL; see csc/sparse_device.cc. Otherwise null.
  std::unique_ptr<Stream> before_wire_;
  std::unique_ptr<Stream> after_wire_;
  std::unique_ptr<DeviceSync> sync_;
  std::optional<DeviceHandover> handover_;
  std::unique_ptr<StepEnd> end_;           // For dense steps by NCCL.
  std::unique_ptr<WireTimes> wire_times_;  // For all steps by NCCL.
  std::unique_ptr<DeviceOptimizer> optimizer_;
};

}  // namespace gradientflow
