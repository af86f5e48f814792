#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/device/device.h"
#include "tests/device/fake_cudart.h"
#include "tests/device/fake_device.h"

// What the functions of the fake runtime share. See fake_cudart.h.
namespace gradientflow::testing {

// What a cudaStream_t and a cudaEvent_t point to.
struct FakeCudaStream {
  int device;
  std::unique_ptr<Stream> stream;
};
struct FakeCudaEvent {
  int device;
  std::unique_ptr<Event> event;
};

struct FakeCudaWorld {
  Mutex mutex;
  std::map<std::string, cudaError_t> failures GF_GUARDED_BY(mutex);
  std::set<int> started GF_GUARDED_BY(mutex);
  std::set<int> loaded GF_GUARDED_BY(mutex);  // Devices with loaded kernels.
  // Allocations by address, which frees them; the second is pinned.
  std::map<const void*, std::shared_ptr<void>> memory GF_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<FakeCudaStream>> destroyed GF_GUARDED_BY(mutex);
  std::array<std::unique_ptr<FakeDevice>, kFakeCudaDevices> devices;
  std::atomic<int> driver_version{13000};
  std::atomic<int> device_count{kFakeCudaDevices};
  std::atomic<int> priority{99};
  // What the devices say of writes that come by the bus.
  std::atomic<int> writes_ordering{0};
  std::atomic<int> flush_options{1};
  std::atomic<FakeCudaStream*> captured{nullptr};
  std::atomic<bool> capture_is_lost{false};
};
FakeCudaWorld& TheWorld();

// For null: the current device's legacy default stream.
FakeCudaStream* Of(cudaStream_t stream);
FakeCudaEvent* Of(cudaEvent_t event);

// The calling thread's current device, -1 for none, and its last error.
int& CurrentDevice();
cudaError_t& LastError();
cudaStreamCaptureMode& CaptureMode();

// The failure planned for this function, or success.
cudaError_t Planned(const char* function);
// Called at the start of a function that needs a current device.
cudaError_t Enter(const char* function);
// Returns `error`, and remembers an error as the thread's last.
cudaError_t Said(cudaError_t error);
cudaError_t CodeOf(const Status& status);
// Whether the device has loaded the kernels.
bool IsLoaded(int device);
// The driver's function of this name, or null.
void* DriverFunction(const char* name);

}  // namespace gradientflow::testing
