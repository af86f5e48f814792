#pragma once

namespace gradientflow::cuda_shim {

// While one exists, kernels run (or the runtime copies), and all memory of the
// device can be touched. Otherwise only what the host may touch can be.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace gradientflow::cuda_shim
