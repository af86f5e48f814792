#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <set>
#include <string>

#include "tests/device/fake_device.h"

// CUDA's runtime, and the functions of the driver that it hands out, as far as
// gradientflow/device uses them, on two FakeDevices. A program that links this
// instead of the runtime runs the CUDA device without a GPU. It enforces what a
// GPU's runtime would only sometimes punish: every call on a stream, an event
// or memory must come with the context of its device, only CurrentSetter() may
// change a thread's device, and a device must load the kernels before it
// launches one.
namespace gradientflow::testing {

inline constexpr int kFakeCudaDevices = 2;

struct FakeCudart {
  static FakeDevice& device(int index);

  // The device whose context is current for this thread, or -1.
  static int current();
  static void set_current(int index);
  // Devices whose context was ever started.
  static std::set<int> started();

  // The next call of this function ("launch": of a kernel; "dma-buf": of the
  // driver's export) does nothing but return this error, once.
  static void Fail(const std::string& function, cudaError_t error);
  // What cudaGetLastError() would return to the caller's own code.
  static cudaError_t TakeLastError();
  static void LeaveLastError(cudaError_t error);
  // The priority of the newest stream.
  static int last_priority();
  // From here on; version 0 means no driver.
  static void SetDriver(int version, int devices);
  // From here on `stream` is captured, in the mode in which CUDA refuses calls
  // of all threads but those that are exempt. EndCapture() returns whether
  // nothing was refused and nothing was given to the stream.
  static void BeginCapture(cudaStream_t stream);
  static bool EndCapture();
  // Whether CUDA may refuse calls of this thread for another's capture.
  static bool minds_captures();
  // What devices that are opened from here on say of writes by the bus.
  static void SetRemoteWrites(int ordering, int flush_options);
};

}  // namespace gradientflow::testing
