#include "gradientflow/csc/memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gradientflow/base/pages.h"
#include "gradientflow/base/str_cat.h"

// HostMemory works at once, on the calling thread. MemoryOfDevice puts work
// into CSC's stream, and events keep the order between that and other streams:
//
//   the owner's stream ─ FollowOwner(), AwaitWritten() ─> CSC's stream
//   CSC's stream ─ Send() ─> the wire's stream ─ Receive() ─> CSC's stream
//   another stream of CSC ─ Follow() ─> CSC's stream
namespace gradientflow {
namespace {

class HostMemory final : public CscMemory {
 public:
  explicit HostMemory(Workers* workers) : workers_(workers) {}

  std::string description() const override { return "the host"; }
  const kernels::ChunkKernelTable& kernels() const override {
    return kernels::CpuChunkKernels();
  }
  Workers* workers() const override { return workers_; }
  Status KernelStatus(const char* kernel, int error) const override {
    if (error == 0) return {};
    return {StatusCode::kInternal,
            StrCat("kernel ", kernel, " failed with error ", error)};
  }
  Status Convert(const kernels::ConvertArgs& args) override {
    return KernelStatus("convert",
                        kernels::CpuKernels().convert(args, nullptr));
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
  Status Zero(void* grads, std::size_t bytes) override {
    std::fill_n(static_cast<std::byte*>(grads), bytes, std::byte{0});
    return {};
  }

 private:
  Workers* const workers_;
};

class MemoryOfDevice final : public CscMemory {
 public:
  MemoryOfDevice(const DeviceCscArgs& args, std::unique_ptr<Event> mark,
                 std::unique_ptr<Event> here)
      : device_(args.device),
        stream_(args.stream),
        sync_(args.sync),
        wire_(args.wire),
        for_wire_(args.for_wire),
        mark_(std::move(mark)),
        here_(std::move(here)) {}

  bool asynchronous() const override { return true; }
  std::string description() const override { return device_->description(); }
  const kernels::ChunkKernelTable& kernels() const override {
    return device_->chunk_kernels();
  }
  void* stream() const override { return stream_->native(); }
  Status KernelStatus(const char* kernel, int error) const override {
    return device_->KernelStatus(kernel, error);
  }
  Status Convert(const kernels::ConvertArgs& args) override {
    return KernelStatus("convert", device_->kernels().convert(args, stream()));
  }
  Result<DeviceMemory> Allocate(std::size_t bytes) override {
    return device_->Allocate(bytes);
  }
  Result<DeviceMemory> AllocateForWire(std::size_t bytes) override {
    return for_wire_ ? for_wire_(bytes) : device_->Allocate(bytes);
  }
  Result<DeviceMemory> AllocateOnHost(std::size_t bytes) override {
    return device_->AllocatePinned(bytes);
  }
  Status Copy(void* dst, const void* src, std::size_t bytes) override {
    return stream_->Copy(dst, src, bytes);
  }
  Status Zero(void* grads, std::size_t bytes) override {
    return sync_ != nullptr ? sync_->Zero(grads, bytes)
                            : stream_->Fill(grads, 0, bytes);
  }
  Status FollowOwner() override {
    return sync_ != nullptr ? sync_->Fence(*stream_) : Status();
  }
  Status AwaitWritten(std::size_t written_end) override {
    return sync_ != nullptr ? sync_->AwaitWritten(written_end, *stream_)
                            : Status();
  }
  Status Synchronize() override { return stream_->Synchronize(); }
  Status Mark() override { return stream_->Record(mark_.get()); }
  Result<bool> Reached() const override { return mark_->Query(); }
  const Event* mark() const override { return mark_.get(); }

  Status Send() override {
    if (wire_ == nullptr) return {};
    GF_RETURN_IF_ERROR(stream_->Record(here_.get()));
    return wire_->Wait(*here_);
  }
  Status Receive() override {
    if (wire_ == nullptr) return {};
    GF_RETURN_IF_ERROR(wire_->Record(here_.get()));
    return stream_->Wait(*here_);
  }
  Status Follow(CscMemory& other) override {
    if (&other == this) return {};
    const Result<const Event*> here = other.Here();
    if (!here.ok() || here.value() == nullptr) return here.status();
    return stream_->Wait(*here.value());
  }
  Result<const Event*> Here() override {
    GF_RETURN_IF_ERROR(stream_->Record(here_.get()));
    return here_.get();
  }

 private:
  Device* const device_;
  Stream* const stream_;
  DeviceSync* const sync_;
  Stream* const wire_;
  const std::function<Result<DeviceMemory>(std::size_t)> for_wire_;
  const std::unique_ptr<Event> mark_;
  const std::unique_ptr<Event> here_;  // Recorded anew for each order.
};

}  // namespace

Status CscMemory::ReadGradients(const void* grads, DType type, float* values,
                                std::size_t n) {
  std::vector<std::byte> copy(n * SizeOf(type));
  GF_RETURN_IF_ERROR(Copy(copy.data(), grads, copy.size()));
  GF_RETURN_IF_ERROR(Synchronize());
  return HostMemory(nullptr).Convert(
      {copy.data(), type, values, DType::kFloat32, nullptr, n, 1, nullptr});
}

Status CscMemory::WriteGradients(const float* values, void* grads, DType type,
                                 std::size_t n) {
  std::vector<std::byte> copy(n * SizeOf(type));
  GF_RETURN_IF_ERROR(HostMemory(nullptr).Convert(
      {values, DType::kFloat32, copy.data(), type, nullptr, n, 1, nullptr}));
  GF_RETURN_IF_ERROR(FollowOwner());
  GF_RETURN_IF_ERROR(Copy(grads, copy.data(), copy.size()));
  return Synchronize();
}

std::unique_ptr<CscMemory> HostCscMemory(Workers* workers) {
  return std::make_unique<HostMemory>(workers);
}

Result<std::unique_ptr<CscMemory>> DeviceCscMemory(const DeviceCscArgs& args) {
  Result<std::unique_ptr<Event>> mark = args.device->NewTimedEvent();
  if (!mark.ok()) return mark.status();
  Result<std::unique_ptr<Event>> here = args.device->NewEvent();
  if (!here.ok()) return here.status();
  return std::unique_ptr<CscMemory>(new MemoryOfDevice(
      args, std::move(mark).value(), std::move(here).value()));
}

}  // namespace gradientflow
