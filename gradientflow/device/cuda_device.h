#pragma once

#include <memory>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// A process can open devices 0 to kMaxCudaDevices - 1.
inline constexpr int kMaxCudaDevices = 16;

// Returns how many devices CUDA shows this process; 0 if there is no CUDA.
// Starts none of them.
int CudaDeviceCount();

// Opens device `index` of those that CUDA shows this process
// (CUDA_VISIBLE_DEVICES), and runs its kernels once. Calls may come from any
// thread and leave the thread's current device as it was. Managed memory counts
// as the device's.
//
// Returns kUnimplemented, "cuda: no device (reason)", if the build, the machine
// or the device cannot do it, and kInvalidArgument if the machine has fewer
// devices. Once a device is lost, calls on it return kUnavailable; only a new
// process can use the device again.
Result<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace gradientflow
