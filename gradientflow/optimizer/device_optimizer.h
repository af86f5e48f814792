#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/device/device.h"
#include "gradientflow/optimizer/optimizer_options.h"

namespace gradientflow {

// What a DeviceOptimizer works on. All are borrowed, and outlive it.
struct DeviceOptimizerArgs {
  const PoolLayout* layout = nullptr;
  Device* device = nullptr;
  const void* pool = nullptr;  // In the device's memory.
  DType type = DType::kFloat32;
  std::size_t chunk_elements = 0;  // 0 if dense.
  std::vector<bool> skip_lars = {};
};

// What a step has exchanged, as an optimiser on the device reads it.
struct ExchangedOnDevice {
  const std::uint32_t* slots = nullptr;  // See Aggregator::device_slots().
  // Nothing changes if this is not 0 by then; see
  // Aggregator::device_nonfinite(). May be null.
  const std::uint32_t* nonfinite = nullptr;
  float scale = 1.0F;  // See ExchangedGradients::scale.
};

// The optimiser of optimizer/optimizer.h (the same update, element for element)
// on a device: two launches a step, four for LARS, which read on the device
// what was sent. No call blocks, except a step whose weights have other
// addresses than in the last step of the same group. Weights and momentum
// change in the order of the stream, and of the calls if they come with
// different streams. NOT thread-safe.
class DeviceOptimizer {
 public:
  // Returns kResourceExhausted if the device has no room for the table of tiles
  // (24 bytes for each tensor, chunk and 16,384 elements).
  static Result<std::unique_ptr<DeviceOptimizer>> Create(
      DeviceOptimizerArgs args);

  // Updates the tensors of one group; groups count from 0. weights[i] are
  // tensor i's float32 master weights in the device's memory, which the caller
  // lends until the stream has done this work; null leaves the tensor alone.
  // The first update allocates the momentum (float32 per element). After
  // kInvalidArgument, kFailedPrecondition (as if the stream is being captured)
  // and kResourceExhausted, neither weights nor momentum change.
  Status Update(std::size_t group, const OptimizerOptions& config,
                std::span<float* const> weights,
                const ExchangedOnDevice& exchanged, Stream& stream);

  // Returns hu in pool order, copied from the device; blocks. Empty before the
  // first Update().
  Result<std::vector<float>> Momentum(Stream& stream);
  std::size_t momentum_bytes() const {
    return momentum_ == nullptr ? 0 : args_.layout->elements() * sizeof(float);
  }
  // Restores what Momentum() returned; blocks. Returns kInvalidArgument for
  // another size.
  Status RestoreMomentum(std::span<const std::byte> bytes, Stream& stream);

  // Recorded after the work of the last step.
  const Event& stepped() const { return *stepped_; }

 private:
  explicit DeviceOptimizer(DeviceOptimizerArgs args);
  Status MakeTiles();
  Status AllocateMomentum();
  // The weights of a group: their addresses, as the device reads them.
  struct Table {
    DeviceMemory weights;  // float* by tensor.
    DeviceMemory host;     // The same, page-locked.
    std::vector<float*> uploaded;
    bool used = false;  // A copy may be under way.
  };
  Result<Table*> TableOf(std::size_t group);
  Status Upload(std::span<float* const> weights, Table& table, Stream& stream);
  Status Launch(const OptimizerOptions& config, const Table& table,
                const ExchangedOnDevice& exchanged, Stream& stream);
  Status TakeRates(const OptimizerOptions& config, const Table& table,
                   const ExchangedOnDevice& exchanged, Stream& stream);

  template <typename T>
  static T* As(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  const DeviceOptimizerArgs args_;
  std::size_t tiles_count_ = 0;
  DeviceMemory tiles_;
  DeviceMemory first_tile_;
  DeviceMemory skip_;
  DeviceMemory weight_squares_;
  DeviceMemory gradient_squares_;
  DeviceMemory rates_;
  std::vector<std::unique_ptr<Table>> tables_;  // By group.
  DeviceMemory momentum_;
  // Recorded after the last step, whose stream may be gone by now. It makes the
  // steps take turns with the memory that they share.
  std::unique_ptr<Event> stepped_;
};

}  // namespace gradientflow
