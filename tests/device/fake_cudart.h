#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <set>
#include <string>

#include "tests/device/fake_device.h"

// CUDA's runtime and what the driver lends it, as far as gradientflow/device
// uses them, on two FakeDevices: what links this instead of the runtime runs
// the CUDA device where there is no GPU. It holds callers to what a GPU's
// runtime would let pass: every call on a stream, an event or memory must come
// with the context of its device, only CurrentSetter() may change a thread's
// device, and a device loads the kernels before it is to launch one.
namespace gradientflow::testing {

inline constexpr int kFakeCudaDevices = 2;

struct FakeCudart {
  static FakeDevice& device(int index);

  // The device whose context is current for this thread, or -1.
  static int current();
  static void set_current(int index);
  // Devices whose context was ever started.
  static std::set<int> started();

  // The next call of this function ("launch": of a kernel) does nothing but
  // fail so, once.
  static void Fail(const std::string& function, cudaError_t error);
  // What the caller's own code would find by cudaGetLastError().
  static cudaError_t TakeLastError();
  static void LeaveLastError(cudaError_t error);
  // Of the stream that was made last.
  static int last_priority();
  // As from now: version 0 is no driver.
  static void SetDriver(int version, int devices);
};

}  // namespace gradientflow::testing
