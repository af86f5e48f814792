#pragma once

namespace gradientflow::cuda_shim {

// While one lives, kernels run (or the runtime copies): all memory of the
// device can be touched. Outside, only what the host may touch can.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace gradientflow::cuda_shim
