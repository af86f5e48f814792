#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"
#include "gradientflow/observe/logger.h"

namespace gradientflow {

// Memory of a device for what NCCL sends again and again: from NCCL, so that it
// needs no copies of its own, or else from the device. Thread-safe.
class NcclMemory {
 public:
  // The pointers are borrowed; `logger` may be null. What was allocated keeps
  // the library.
  NcclMemory(std::shared_ptr<const NcclApi> api, Device* device, Logger* logger)
      : api_(std::move(api)), device_(device), logger_(logger) {}

  struct Part {
    DeviceMemory data;
    bool from_nccl = false;
  };
  // Returns memory that is not zeroed. If NCCL has none, it is the device's;
  // the log says so the first time that NCCL fails. kResourceExhausted if the
  // device has none either. REQUIRES that the device is current for the calling
  // thread.
  Result<Part> Allocate(std::size_t bytes);
  // The same, zeroed. May wait for the device.
  Result<DeviceMemory> AllocateZeroed(std::size_t bytes);

 private:
  const std::shared_ptr<const NcclApi> api_;
  Device* const device_;
  Logger* const logger_;
  std::atomic<bool> told_{false};
};

}  // namespace gradientflow
