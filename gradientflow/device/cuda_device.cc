#include "gradientflow/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_context.h"
#include "gradientflow/device/cuda_facts.h"
#include "gradientflow/device/cuda_probe.h"
#include "gradientflow/device/cuda_status.h"
#include "gradientflow/device/cuda_stream.h"
#include "gradientflow/device/cuda_tables.h"
#include "kernels/cuda/cuda_kernels.h"

namespace gradientflow {
namespace {

// What is read from a device once.
struct Traits {
  std::string name;
  std::uint64_t unique_id = 0;
  int ordinary = 0;  // Priorities of streams.
  int urgent = 0;
  // What becomes of other devices' writes to its memory.
  int writes_ordering = cudaGPUDirectRDMAWritesOrderingNone;
  int flush_options = 0;
};

// Returns 0 if the driver does not know the attribute.
int Attribute(int index, cudaDeviceAttr attribute) {
  int value = 0;
  return Succeeded(cudaDeviceGetAttribute(&value, attribute, index)) ? value
                                                                     : 0;
}

// Uses both halves of the UUID, because those of one board's parts differ
// little.
std::uint64_t UniqueId(const cudaUUID_t& uuid) {
  std::uint64_t id = 0xcbf29ce484222325;  // FNV-1a.
  for (const char byte : uuid.bytes) {
    id = (id ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return id != 0 ? id : 1;
}

Result<Traits> ReadTraits(int index) {
  cudaDeviceProp properties = {};
  GF_CUDA_RETURN_IF_ERROR(index, cudaGetDeviceProperties(&properties, index),
                          "cudaGetDeviceProperties()");
  Traits traits;
  traits.name = StrCat("cuda:", index, " ", properties.name);
  traits.unique_id = UniqueId(properties.uuid);
  GF_CUDA_RETURN_IF_ERROR(
      index, cudaDeviceGetStreamPriorityRange(&traits.ordinary, &traits.urgent),
      "cudaDeviceGetStreamPriorityRange()");
  traits.writes_ordering =
      Attribute(index, cudaDevAttrGPUDirectRDMAWritesOrdering);
  traits.flush_options =
      Attribute(index, cudaDevAttrGPUDirectRDMAFlushWritesOptions);
  return traits;
}

class CudaDevice final : public Device {
 public:
  // New memory is zeroed on the stream `zeroing`.
  CudaDevice(const CudaContext& context, Traits traits,
             std::unique_ptr<CudaStream> zeroing)
      : context_(context),
        traits_(std::move(traits)),
        zeroing_(std::move(zeroing)) {}

  DeviceId id() const override {
    return {DeviceId::Kind::kCuda, context_.index()};
  }
  std::string description() const override { return traits_.name; }
  std::uint64_t unique_id() const override { return traits_.unique_id; }
  const kernels::KernelTable& kernels() const override {
    return CudaTable(context_.index());
  }
  const kernels::ChunkKernelTable& chunk_kernels() const override {
    return CudaChunkTable(context_.index());
  }

  Status RunCurrent(const std::function<Status()>& body) override {
    const CurrentContext current(context_);
    GF_RETURN_IF_ERROR(current.check());
    return body();
  }
  std::function<void()> CurrentSetter() const override {
    return
        [index = context_.index()] { static_cast<void>(cudaSetDevice(index)); };
  }

  Result<DeviceMemory> Allocate(std::size_t bytes) override;
  Result<DeviceMemory> AllocatePinned(std::size_t bytes) override;
  Result<std::shared_ptr<void>> RegisterHost(void* data,
                                             std::size_t bytes) override;
  Result<std::unique_ptr<Stream>> NewStream(bool urgent) override;
  std::unique_ptr<Stream> Wrap(void* native) override;
  Result<std::unique_ptr<Event>> NewEvent() override {
    return CudaEvent::Create(context_, cudaEventDisableTiming);
  }
  Result<std::unique_ptr<Event>> NewTimedEvent() override {
    return CudaEvent::Create(context_, cudaEventDefault);
  }
  Result<DmaBuf> ExportDmaBuf(const void* data, std::size_t bytes) override;
  Status FlushRemoteWrites() override;
  Status KernelStatus(std::string_view kernel, int error) const override;
  MemoryOwner OwnerOf(const void* pointer) const override;

  // Returns OK if the kernels of this build run on the device.
  Status TryKernels();

 private:
  const CudaContext& context_;
  const Traits traits_;
  Mutex mutex_;  // One thread at a time submits to a stream.
  const std::unique_ptr<CudaStream> zeroing_;
};

Result<DeviceMemory> CudaDevice::Allocate(std::size_t bytes) {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  bytes = std::max<std::size_t>(bytes, 1);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error != cudaSuccess) {
    std::size_t free = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&free, &total);
    GF_CUDA_RETURN_IF_ERROR(context_.index(), error, "cudaMalloc(", bytes,
                            " bytes; ", free, " of ", total, " free)");
  }
  const auto release = [context = &context_](std::byte* memory) {
    const CurrentContext own(*context);
    (void)cudaFree(memory);
  };
  DeviceMemory memory(static_cast<std::byte*>(data), release);
  // Not on the default stream, which would wait for the caller's work.
  const MutexLock lock(mutex_);
  GF_RETURN_IF_ERROR(zeroing_->Fill(data, 0, bytes));
  GF_RETURN_IF_ERROR(zeroing_->Synchronize());
  return memory;
}

Result<DeviceMemory> CudaDevice::AllocatePinned(std::size_t bytes) {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  bytes = std::max<std::size_t>(bytes, 1);
  void* data = nullptr;
  GF_CUDA_RETURN_IF_ERROR(context_.index(),
                          cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                          "cudaHostAlloc(", bytes, " bytes)");
  const auto release = [context = &context_](std::byte* memory) {
    const CurrentContext own(*context);
    (void)cudaFreeHost(memory);
  };
  return DeviceMemory(static_cast<std::byte*>(data), release);
}

Result<std::shared_ptr<void>> CudaDevice::RegisterHost(void* data,
                                                       std::size_t bytes) {
  if (bytes == 0) return std::shared_ptr<void>();
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_CUDA_RETURN_IF_ERROR(
      context_.index(), cudaHostRegister(data, bytes, cudaHostRegisterPortable),
      "cudaHostRegister(", data, ", ", bytes, " bytes)");
  const auto release = [context = &context_](void* memory) {
    const CurrentContext own(*context);
    (void)cudaHostUnregister(memory);
  };
  return std::shared_ptr<void>(data, release);
}

Result<std::unique_ptr<Stream>> CudaDevice::NewStream(bool urgent) {
  auto stream =
      CudaStream::Create(context_, urgent ? traits_.urgent : traits_.ordinary);
  GF_RETURN_IF_ERROR(stream.status());
  return std::unique_ptr<Stream>(std::move(stream).value());
}

std::unique_ptr<Stream> CudaDevice::Wrap(void* native) {
  return std::make_unique<CudaStream>(context_,
                                      static_cast<cudaStream_t>(native), false);
}

// The driver exports whole pages only. Those who are given the descriptor count
// from the offset, and so do not see what else is in the first page.
Result<DmaBuf> CudaDevice::ExportDmaBuf(const void* data, std::size_t bytes) {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = at / page * page;
  const std::uintptr_t end = (at + bytes + page - 1) / page * page;
  const Result<int> fd = context_.ExportDmaBuf(begin, end - begin);
  if (!fd.ok()) return fd.status();
  return DmaBuf{Fd(fd.value()), at - begin};
}

Status CudaDevice::FlushRemoteWrites() {
  if (traits_.writes_ordering >= cudaGPUDirectRDMAWritesOrderingOwner) {
    return Status();
  }
  if ((traits_.flush_options & cudaFlushGPUDirectRDMAWritesOptionHost) == 0) {
    return Status(StatusCode::kUnimplemented,
                  StrCat(traits_.name,
                         " neither orders the writes of other devices nor can "
                         "wait for them"));
  }
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_CUDA_RETURN_IF_ERROR(context_.index(),
                          cudaDeviceFlushGPUDirectRDMAWrites(
                              cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                              cudaFlushGPUDirectRDMAWritesToOwner),
                          "cudaDeviceFlushGPUDirectRDMAWrites()");
  return Status();
}

MemoryOwner CudaDevice::OwnerOf(const void* pointer) const {
  if (pointer == nullptr) return MemoryOwner::kHost;
  const CurrentContext current(context_);
  cudaPointerAttributes attributes = {};
  if (current.error() != cudaSuccess ||
      !Succeeded(cudaPointerGetAttributes(&attributes, pointer))) {
    return MemoryOwner::kHost;
  }
  // Managed memory has no fixed place, so every device that can use it counts
  // as its owner.
  if (attributes.type == cudaMemoryTypeManaged) return MemoryOwner::kThisDevice;
  if (attributes.type != cudaMemoryTypeDevice) return MemoryOwner::kHost;
  return attributes.device == context_.index() ? MemoryOwner::kThisDevice
                                               : MemoryOwner::kOtherDevice;
}

Status CudaDevice::KernelStatus(std::string_view kernel, int error) const {
  if (error == EINVAL) {  // From the kernel itself; not a CUDA number.
    return {StatusCode::kInternal,
            StrCat("cuda:", context_.index(), ": kernel ", kernel,
                   " does not take these types or counts")};
  }
  GF_CUDA_RETURN_IF_ERROR(context_.index(), static_cast<cudaError_t>(error),
                          "kernel ", kernel);
  return {};
}

Status CudaDevice::TryKernels() {
  Result<DeviceMemory> memory = Allocate(2 * sizeof(float));
  GF_RETURN_IF_ERROR(memory.status());
  auto* floats = reinterpret_cast<float*>(memory.value().get());
  const int error = kernels().convert({.src = floats,
                                       .src_type = kernels::DType::kFloat32,
                                       .dst = floats + 1,
                                       .dst_type = kernels::DType::kFloat32,
                                       .settled = nullptr,
                                       .n = 1,
                                       .scale = 2,
                                       .nonfinite = nullptr},
                                      zeroing_->native());
  GF_CUDA_RETURN_IF_ERROR(context_.index(), static_cast<cudaError_t>(error),
                          "the first kernel on ", traits_.name);
  return zeroing_->Synchronize();
}

// Must precede any kernel of NCCL on this device: see kernels::LoadKernels().
Status LoadKernels(int index) {
  const kernels::LoadResult loaded = kernels::LoadKernels();
  GF_CUDA_RETURN_IF_ERROR(index, static_cast<cudaError_t>(loaded.error),
                          loaded.call);
  return {};
}

// Turns a failure to open into the text that all builds use for it.
Status NoDevice(int index, const Status& why) {
  if (why.code() != StatusCode::kUnimplemented) return why;
  CudaFacts facts;
  facts.reason = StrCat("device ", index, ": ", why.message());
  return Status(why.code(), facts.ToString());
}

Result<std::unique_ptr<Device>> Open(int index) {
  const auto context = CudaContext::Of(index);
  GF_RETURN_IF_ERROR(context.status());
  const CurrentContext current(*context.value());
  GF_RETURN_IF_ERROR(current.check());
  GF_RETURN_IF_ERROR(LoadKernels(index));
  Result<Traits> traits = ReadTraits(index);
  GF_RETURN_IF_ERROR(traits.status());
  auto zeroing = CudaStream::Create(*context.value(), traits.value().ordinary);
  GF_RETURN_IF_ERROR(zeroing.status());
  auto device = std::make_unique<CudaDevice>(
      *context.value(), std::move(traits).value(), std::move(zeroing).value());
  GF_RETURN_IF_ERROR(device->TryKernels());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  ProbeCuda(&count);
  return count;
}

Result<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  int count = 0;
  const CudaFacts facts = ProbeCuda(&count);
  if (count == 0) return Status(StatusCode::kUnimplemented, facts.ToString());
  if (index < 0 || index >= std::min(count, kMaxCudaDevices)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("cuda: no device ", index, ": this process has ",
                         count, " and can use the first ", kMaxCudaDevices));
  }
  auto device = Open(index);
  if (!device.ok()) return NoDevice(index, device.status());
  return device;
}

}  // namespace gradientflow
