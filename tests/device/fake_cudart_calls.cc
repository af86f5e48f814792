#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "tests/device/fake_cudart_world.h"

// The functions of CUDA's runtime, under their own names.
namespace gradientflow::testing {
namespace {

template <class Call>
cudaError_t OnStream(const char* function, cudaStream_t stream, Call call) {
  if (const cudaError_t error = Enter(function)) return Said(error);
  const FakeCudaStream* own = Of(stream);
  if (own->device != CurrentDevice()) {
    return Said(cudaErrorInvalidResourceHandle);
  }
  if (own == TheWorld().captured) TheWorld().capture_is_lost = true;
  return Said(CodeOf(call(*own->stream)));
}

template <class Call>
cudaError_t OnEvent(const char* function, cudaEvent_t event, Call call) {
  if (const cudaError_t error = Enter(function)) return Said(error);
  const FakeCudaEvent* own = Of(event);
  if (own->device != CurrentDevice()) {
    return Said(cudaErrorInvalidResourceHandle);
  }
  return Said(call(*own->event));
}

FakeDevice& Current() { return *TheWorld().devices[CurrentDevice()]; }

template <class T>
cudaError_t Keep(Result<std::shared_ptr<T>> memory, void** out) {
  if (!memory.ok()) return Said(CodeOf(memory.status()));
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  *out = memory.value().get();
  world.memory[*out] = std::move(memory).value();
  return cudaSuccess;
}

cudaError_t Drop(const char* function, const void* data) {
  if (const cudaError_t error = Enter(function)) return Said(error);
  FakeCudaWorld& world = TheWorld();
  const MutexLock lock(world.mutex);
  return world.memory.erase(data) == 1 ? cudaSuccess
                                       : Said(cudaErrorInvalidValue);
}

}  // namespace
}  // namespace gradientflow::testing

using gradientflow::Event;
using gradientflow::Result;
using gradientflow::Stream;
using namespace gradientflow::testing;  // NOLINT: this is their C face.

cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheWorld().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = Planned("cudaGetDeviceCount")) {
    return Said(error);
  }
  *count = TheWorld().device_count;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device >= kFakeCudaDevices) return Said(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  properties->major = 9;
  properties->totalGlobalMem = std::size_t{3} << 30;
  properties->uuid.bytes[15] = static_cast<char>(device);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kFakeCudaDevices) {
    return Said(cudaErrorInvalidDevice);
  }
  CurrentDevice() = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t error = Enter("priority range")) return Said(error);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t error = Enter("cudaMemGetInfo")) return Said(error);
  *free = std::size_t{2} << 30;
  *total = std::size_t{3} << 30;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned version,
    unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* verdict) {
  if (static_cast<int>(version) > TheWorld().driver_version) {
    return Said(cudaErrorInvalidValue);
  }
  *function = Planned(symbol) ? nullptr : DriverFunction(symbol);
  *verdict = *function != nullptr ? cudaDriverEntryPointSuccess
                                  : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  if (device >= kFakeCudaDevices) return Said(cudaErrorInvalidDevice);
  FakeCudaWorld& world = TheWorld();
  if (attribute == cudaDevAttrGPUDirectRDMAWritesOrdering) {
    *value = world.writes_ordering;
  } else if (attribute == cudaDevAttrGPUDirectRDMAFlushWritesOptions) {
    *value = world.flush_options;
  } else {
    return Said(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(
    cudaFlushGPUDirectRDMAWritesTarget target,
    cudaFlushGPUDirectRDMAWritesScope scope) {
  if (const cudaError_t error = Enter("cudaDeviceFlushGPUDirectRDMAWrites")) {
    return Said(error);
  }
  if (target != cudaFlushGPUDirectRDMAWritesTargetCurrentDevice ||
      scope != cudaFlushGPUDirectRDMAWritesToOwner) {
    return Said(cudaErrorInvalidValue);
  }
  return Said(CodeOf(Current().FlushRemoteWrites()));
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (const cudaError_t error = Enter("cudaMalloc")) return Said(error);
  const cudaError_t error = Keep(Current().Allocate(bytes), data);
  // Not zeroed; and not poisoned by a stream's work, which would order it.
  if (error == cudaSuccess) std::memset(*data, kFakePoison, bytes);
  return error;
}

cudaError_t cudaFree(void* data) { return Drop("cudaFree", data); }

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  if (const cudaError_t error = Enter("cudaHostAlloc")) return Said(error);
  if (flags != cudaHostAllocPortable) return Said(cudaErrorInvalidValue);
  return Keep(Current().AllocatePinned(bytes), data);
}

cudaError_t cudaFreeHost(void* data) { return Drop("cudaFreeHost", data); }

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned flags) {
  if (const cudaError_t error = Enter("cudaHostRegister")) return Said(error);
  if (flags != cudaHostRegisterPortable) return Said(cudaErrorInvalidValue);
  return Keep(Current().RegisterHost(data, bytes), &data);
}

cudaError_t cudaHostUnregister(void* data) {
  return Drop("cudaHostUnregister", data);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* data) {
  if (const cudaError_t error = Enter("cudaPointerGetAttributes")) {
    return Said(error);
  }
  *attributes = {};
  for (int i = 0; i < kFakeCudaDevices; ++i) {
    if (!TheWorld().devices[i]->Owns(data)) continue;
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = i;
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int byte, std::size_t bytes,
                            cudaStream_t stream) {
  return OnStream("cudaMemsetAsync", stream,
                  [&](Stream& own) { return own.Fill(data, byte, bytes); });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) return Said(cudaErrorInvalidValue);
  return OnStream("cudaMemcpyAsync", stream,
                  [&](Stream& own) { return own.Copy(dst, src, bytes); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int priority) {
  if (const cudaError_t error = Enter("cudaStreamCreateWithPriority")) {
    return Said(error);
  }
  if (flags != cudaStreamNonBlocking) return Said(cudaErrorInvalidValue);
  auto made = Current().NewStream(false);
  if (!made.ok()) return Said(CodeOf(made.status()));
  TheWorld().priority = priority;
  *stream = reinterpret_cast<cudaStream_t>(
      new FakeCudaStream{CurrentDevice(), std::move(made).value()});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = Enter("cudaStreamIsCapturing")) {
    return Said(error);
  }
  *status = Of(stream) == TheWorld().captured ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, CaptureMode());
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaStreamDestroy")) return Said(error);
  // Remaining work continues: everything that has to wait for it has waited.
  FakeCudaWorld& world = TheWorld();
  const gradientflow::MutexLock lock(world.mutex);
  world.destroyed.emplace_back(Of(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return OnStream("cudaStreamSynchronize", stream,
                  [](Stream& own) { return own.Synchronize(); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned /*flags*/) {
  return OnStream("cudaStreamWaitEvent", stream,
                  [&](Stream& own) { return own.Wait(*Of(event)->event); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = Enter("cudaEventCreateWithFlags")) {
    return Said(error);
  }
  if (flags != cudaEventDisableTiming && flags != cudaEventDefault) {
    return Said(cudaErrorInvalidValue);
  }
  auto made = flags == cudaEventDefault ? Current().NewTimedEvent()
                                        : Current().NewEvent();
  if (!made.ok()) return Said(CodeOf(made.status()));
  *event = reinterpret_cast<cudaEvent_t>(
      new FakeCudaEvent{CurrentDevice(), std::move(made).value()});
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t error = Enter("cudaEventDestroy")) return Said(error);
  delete Of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return OnStream("cudaEventRecord", stream, [&](Stream& own) {
    return own.Record(Of(event)->event.get());
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return OnEvent("cudaEventQuery", event, [](const Event& own) {
    const Result<bool> done = own.Query();
    if (!done.ok()) return CodeOf(done.status());
    return done.value() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return OnEvent("cudaEventSynchronize", event,
                 [](const Event& own) { return CodeOf(own.Synchronize()); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  return OnEvent("cudaEventElapsedTime", end, [&](const Event& own) {
    const Result<double> seconds = own.SecondsSince(*Of(start)->event);
    if (!seconds.ok()) return CodeOf(seconds.status());
    *milliseconds = static_cast<float>(1e3 * seconds.value());
    return cudaSuccess;
  });
}

cudaError_t cudaPeekAtLastError() { return LastError(); }
cudaError_t cudaGetLastError() { return FakeCudart::TakeLastError(); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                          : "cudaErrorOther";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access"
                                          : "another error";
}
