#include "tests/device/fake_cudart_world.h"

#include <unistd.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "kernels/cuda/cuda_kernels.h"

namespace gradientflow::testing {
namespace {

// The driver's functions. A context is its device's index plus one.
CUresult DeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult Retain(CUcontext* context, CUdevice device) {
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  world.started.insert(device);
  *context = reinterpret_cast<CUcontext>(std::intptr_t{device} + 1);
  return CUDA_SUCCESS;
}

CUresult GetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(std::intptr_t{CurrentDevice()} + 1);
  return CUDA_SUCCESS;
}

CUresult SetCurrent(CUcontext context) {
  if (const cudaError_t error = Planned("cuCtxSetCurrent")) {
    return static_cast<CUresult>(error);
  }
  const auto number = reinterpret_cast<std::intptr_t>(context);
  CurrentDevice() = static_cast<int>(number) - 1;
  return CUDA_SUCCESS;
}

CUresult GetHandle(void* handle, CUdeviceptr begin, std::size_t bytes,
                   CUmemRangeHandleType type, unsigned long long flags) {
  if (const cudaError_t error = Planned("dma-buf")) {
    return static_cast<CUresult>(error);
  }
  constexpr std::uintptr_t kPage = 4096;
  if (CurrentDevice() < 0 || begin % kPage != 0 || bytes % kPage != 0 ||
      type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeDevice& device = *TheWorld().devices[CurrentDevice()];
  const auto exported = device.ExportDmaBuf(
      reinterpret_cast<const void*>(begin), 1);  // NOLINT: an address.
  if (!exported.ok()) return CUDA_ERROR_NOT_SUPPORTED;
  *static_cast<int*>(handle) = ::dup(exported.value().fd.get());
  return CUDA_SUCCESS;
}

// A call that may wait for work of another stream, or that frees memory.
bool IsRefusedInCaptures(std::string_view function) {
  for (const char* refused :
       {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
        "cudaHostRegister", "cudaHostUnregister", "cudaEventQuery",
        "cudaEventSynchronize", "cudaStreamSynchronize"}) {
    if (function == refused) return true;
  }
  return false;
}

}  // namespace

FakeCudaWorld& TheWorld() {
  static FakeCudaWorld* world = [] {
    auto* made = new FakeCudaWorld;
    for (int i = 0; i < kFakeCudaDevices; ++i) {
      const FakeOptions options = {.id = {DeviceId::Kind::kCuda, i},
                                   .memory_bytes = std::size_t{1} << 40,
                                   .dma_buf = true,
                                   .flush = [] { return Status(); }};
      made->devices[i] = std::make_unique<FakeDevice>(options);
    }
    return made;
  }();
  return *world;
}

int& CurrentDevice() {
  thread_local int current = -1;
  return current;
}

cudaError_t& LastError() {
  thread_local cudaError_t last = cudaSuccess;
  return last;
}

cudaStreamCaptureMode& CaptureMode() {
  thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  return mode;
}

cudaError_t Said(cudaError_t error) {
  // "Not ready" is no failure, and must not hide one.
  const bool hides = error == cudaErrorNotReady && LastError() != cudaSuccess;
  if (error != cudaSuccess && !hides) LastError() = error;
  return error;
}

cudaError_t CodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return cudaSuccess;
    case StatusCode::kResourceExhausted:
      return cudaErrorMemoryAllocation;
    case StatusCode::kInvalidArgument:
      return cudaErrorInvalidValue;
    default:
      return cudaErrorIllegalAddress;
  }
}

cudaError_t Planned(const char* function) {
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  const auto found = world.failures.find(function);
  if (found == world.failures.end()) return cudaSuccess;
  const cudaError_t error = found->second;
  world.failures.erase(found);
  return error;
}

cudaError_t Enter(const char* function) {
  if (const cudaError_t error = Planned(function)) return error;
  FakeCudaWorld& world = TheWorld();
  if (world.captured != nullptr && IsRefusedInCaptures(function) &&
      CaptureMode() != cudaStreamCaptureModeRelaxed) {
    world.capture_is_lost = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return CurrentDevice() < 0 ? cudaErrorDeviceUninitialized : cudaSuccess;
}

bool IsLoaded(int device) {
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.loaded.count(device) == 1;
}

FakeCudaStream* Of(cudaStream_t stream) {
  using Defaults = std::array<FakeCudaStream, kFakeCudaDevices>;
  static Defaults* defaults = [] {
    auto* made = new Defaults;
    for (int i = 0; i < kFakeCudaDevices; ++i) {
      (*made)[i] = {i, TheWorld().devices[i]->Wrap(nullptr)};
    }
    return made;
  }();
  if (stream == nullptr) return &(*defaults)[CurrentDevice()];
  return reinterpret_cast<FakeCudaStream*>(stream);
}

FakeCudaEvent* Of(cudaEvent_t event) {
  return reinterpret_cast<FakeCudaEvent*>(event);
}

void* DriverFunction(const char* name) {
  const std::string_view wanted = name;
  if (wanted == "cuDeviceGet") return reinterpret_cast<void*>(&DeviceGet);
  if (wanted == "cuDevicePrimaryCtxRetain") {
    return reinterpret_cast<void*>(&Retain);
  }
  if (wanted == "cuCtxGetCurrent") return reinterpret_cast<void*>(&GetCurrent);
  if (wanted == "cuMemGetHandleForAddressRange") {
    return reinterpret_cast<void*>(&GetHandle);
  }
  if (wanted == "cuCtxSetCurrent") return reinterpret_cast<void*>(&SetCurrent);
  return nullptr;
}

FakeDevice& FakeCudart::device(int index) { return *TheWorld().devices[index]; }
int FakeCudart::current() { return CurrentDevice(); }
void FakeCudart::set_current(int index) { CurrentDevice() = index; }
cudaError_t FakeCudart::TakeLastError() {
  return std::exchange(LastError(), cudaSuccess);
}
void FakeCudart::LeaveLastError(cudaError_t error) { LastError() = error; }
int FakeCudart::last_priority() { return TheWorld().priority; }

void FakeCudart::SetDriver(int version, int devices) {
  TheWorld().driver_version = version;
  TheWorld().device_count = devices;
}

void FakeCudart::BeginCapture(cudaStream_t stream) {
  TheWorld().capture_is_lost = false;
  TheWorld().captured = Of(stream);
}
bool FakeCudart::EndCapture() {
  TheWorld().captured = nullptr;
  return !TheWorld().capture_is_lost;
}
bool FakeCudart::minds_captures() {
  return CaptureMode() == cudaStreamCaptureModeGlobal;
}

void FakeCudart::SetRemoteWrites(int ordering, int flush_options) {
  TheWorld().writes_ordering = ordering;
  TheWorld().flush_options = flush_options;
}

std::set<int> FakeCudart::started() {
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.started;
}

void FakeCudart::Fail(const std::string& function, cudaError_t error) {
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  world.failures[function] = error;
}

}  // namespace gradientflow::testing
