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
#include "gradientflow/optimizer/optimizer_config.h"

namespace gradientflow {

// What a DeviceOptimizer works on. Borrowed; outlives it.
struct DeviceOptimizerParts {
  const PoolLayout* layout = nullptr;
  Device* device = nullptr;
  const void* pool = nullptr;  // The device's.
  DType type = DType::kFloat32;
  std::size_t chunk_elements = 0;  // 0: dense.
  std::vector<bool> skip_lars = {};
};

// The optimiser of optimizer/optimizer.h (the same update, element for element)
// on a device: two launches a step, four for LARS, that read from the device
// what was sent. Nothing waits, but for a step with other weights than the last
// one of that group; weights and momentum change in the order of the stream,
// and of the calls if they come with several streams. NOT thread-safe.
class DeviceOptimizer {
 public:
  // kResourceExhausted if the device has no room for the table of tiles (24
  // bytes for each tensor, chunk and 16,384 elements).
  static Result<std::unique_ptr<DeviceOptimizer>> Create(
      DeviceOptimizerParts parts);

  // Updates the tensors of one group, counted from 0. weights[i]: tensor i's
  // float32 master weights in the device's memory, the caller's until the
  // stream has done this work; null: left alone. `slots`: see
  // Aggregator::device_slots(); `scale`: ExchangedGradients::scale. The
  // momentum (float32 per element) is allocated by the first step.
  Status Step(std::size_t group, const OptimizerConfig& config,
              std::span<float* const> weights, const std::uint32_t* slots,
              float scale, Stream& stream);

  // hu in pool order, copied from the device (blocks); empty before the first
  // Step().
  Result<std::vector<float>> Momentum(Stream& stream);
  std::size_t momentum_bytes() const {
    return momentum_ == nullptr ? 0 : parts_.layout->elements() * sizeof(float);
  }
  // Puts back the bytes of a Momentum(); blocks. kInvalidArgument on another
  // size.
  Status RestoreMomentum(std::span<const std::byte> bytes, Stream& stream);

  // The end of the last step's work.
  const Event& stepped() const { return *stepped_; }

 private:
  explicit DeviceOptimizer(DeviceOptimizerParts parts);
  Status MakeTiles();
  Status AllocateMomentum();
  // A group's weights, and where the device finds them.
  struct Table {
    DeviceMemory weights;  // float* by tensor.
    DeviceMemory host;     // The same, page-locked.
    std::vector<float*> uploaded;
  };
  Result<Table*> TableOf(std::size_t group);
  Status Upload(std::span<float* const> weights, Table& table, Stream& stream);
  Status Launch(const OptimizerConfig& config, const Table& table,
                const std::uint32_t* slots, float scale, Stream& stream);
  Status TakeRates(const OptimizerConfig& config, const Table& table,
                   const std::uint32_t* slots, float scale, Stream& stream);

  template <typename T>
  static T* As(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  const DeviceOptimizerParts parts_;
  std::size_t tiles_count_ = 0;
  DeviceMemory tiles_;
  DeviceMemory first_tile_;
  DeviceMemory skip_;
  DeviceMemory weight_squares_;
  DeviceMemory gradient_squares_;
  DeviceMemory rates_;
  std::vector<std::unique_ptr<Table>> tables_;  // By group.
  DeviceMemory momentum_;
  // Behind the last step, whose stream may have gone since: all that the steps
  // share is used by one at a time.
  std::unique_ptr<Event> stepped_;
};

}  // namespace gradientflow
