#pragma once

#include <memory>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// Devices that a process can open: 0 to kMaxCudaDevices - 1.
inline constexpr int kMaxCudaDevices = 16;

// How many devices CUDA shows this process; 0 if there is no CUDA. Starts none
// of them.
int CudaDeviceCount();

// Device `index` of those that CUDA shows this process (CUDA_VISIBLE_DEVICES),
// after its kernels have run once. Calls may come from any thread, and leave
// its current device as it was. Managed memory counts as the device's.
//
// kUnimplemented, "cuda: no device (reason)", if the build, the machine or the
// device cannot do it; kInvalidArgument if the machine has fewer devices.
// Errors of calls are kUnavailable once the device is lost, which only another
// process can mend.
Result<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace gradientflow
