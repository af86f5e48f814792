#include "gradientflow/csc/memory.h"

#include <cstring>
#include <utility>

#include "gradientflow/base/pages.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

class HostMemory final : public CscMemory {
 public:
  explicit HostMemory(Workers* workers) : workers_(workers) {}

  bool asynchronous() const override { return false; }
  std::string description() const override { return "the host"; }
  const kernels::ChunkKernelTable& kernels() const override {
    return kernels::CpuChunkKernels();
  }
  void* stream() const override { return nullptr; }
  Workers* workers() const override { return workers_; }
  Status KernelStatus(const char* kernel, int error) const override {
    if (error == 0) return {};
    return {StatusCode::kInternal,
            StrCat("kernel ", kernel, " failed with error ", error)};
  }
  Result<DeviceMemory> Allocate(std::size_t bytes) override {
    auto pages = std::make_shared<Pages<std::byte>>(NewPages<std::byte>(bytes));
    std::byte* const data = pages->get();
    if (data == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no ", bytes, " bytes of memory for CSC"));
    }
    return DeviceMemory(std::move(pages), data);
  }
  Result<DeviceMemory> AllocateOnHost(std::size_t bytes) override {
    return Allocate(bytes);
  }
  Status Copy(void* dst, const void* src, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src, bytes);
    return {};
  }
  Status Synchronize() override { return {}; }
  Status Mark() override { return {}; }
  Result<bool> Reached() const override { return true; }

 private:
  Workers* const workers_;
};

class MemoryOfDevice final : public CscMemory {
 public:
  MemoryOfDevice(Device* device, Stream* stream, std::unique_ptr<Event> mark)
      : device_(device), stream_(stream), mark_(std::move(mark)) {}

  bool asynchronous() const override { return true; }
  std::string description() const override { return device_->description(); }
  const kernels::ChunkKernelTable& kernels() const override {
    return device_->chunk_kernels();
  }
  void* stream() const override { return stream_->native(); }
  Status KernelStatus(const char* kernel, int error) const override {
    return device_->KernelStatus(kernel, error);
  }
  Result<DeviceMemory> Allocate(std::size_t bytes) override {
    return device_->Allocate(bytes);
  }
  Result<DeviceMemory> AllocateOnHost(std::size_t bytes) override {
    return device_->AllocatePinned(bytes);
  }
  Status Copy(void* dst, const void* src, std::size_t bytes) override {
    return stream_->Copy(dst, src, bytes);
  }
  Status Synchronize() override { return stream_->Synchronize(); }
  Status Mark() override { return stream_->Record(mark_.get()); }
  Result<bool> Reached() const override { return mark_->Query(); }

 private:
  Device* const device_;
  Stream* const stream_;
  const std::unique_ptr<Event> mark_;
};

}  // namespace

std::unique_ptr<CscMemory> HostCscMemory(Workers* workers) {
  return std::make_unique<HostMemory>(workers);
}

Result<std::unique_ptr<CscMemory>> DeviceCscMemory(Device* device,
                                                   Stream* stream) {
  Result<std::unique_ptr<Event>> mark = device->NewEvent();
  if (!mark.ok()) return mark.status();
  return std::unique_ptr<CscMemory>(
      new MemoryOfDevice(device, stream, std::move(mark).value()));
}

}  // namespace gradientflow
