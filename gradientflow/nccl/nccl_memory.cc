#include "gradientflow/nccl/nccl_memory.h"

#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Result<NcclMemory::Part> NcclMemory::Allocate(std::size_t bytes) {
  Part part;
  if (api_->mem_alloc != nullptr && bytes > 0) {
    void* data = nullptr;
    const nccl::ReturnCode code = api_->mem_alloc(&data, bytes);
    if (code == nccl::ReturnCode::kSuccess && data != nullptr) {
      part.from_nccl = true;
      part.data = DeviceMemory(static_cast<std::byte*>(data),
                               [api = api_](std::byte* memory) {
                                 static_cast<void>(api->mem_free(memory));
                               });
      return part;
    }
    if (!told_.exchange(true) && logger_ != nullptr) {
      logger_->Log(
          LogLevel::kWarning,
          StrCat("ncclMemAlloc of ", bytes, " bytes failed (",
                 api_->get_error_string(code), ", code ",
                 static_cast<int>(code),
                 "): ordinary memory of the device takes its place, of which "
                 "NCCL may make copies"));
    }
  }
  Result<DeviceMemory> memory = device_->Allocate(bytes);
  if (!memory.ok()) return memory.status();
  part.data = std::move(memory).value();
  return part;
}

// NCCL's is not zeroed, the device's is.
Result<DeviceMemory> NcclMemory::AllocateZeroed(std::size_t bytes) {
  Result<Part> part = Allocate(bytes);
  if (!part.ok()) return part.status();
  if (!part.value().from_nccl) return part.value().data;
  Result<std::unique_ptr<Stream>> stream = device_->NewStream(/*urgent=*/false);
  if (!stream.ok()) return stream.status();
  GF_RETURN_IF_ERROR(stream.value()->Fill(part.value().data.get(), 0, bytes));
  GF_RETURN_IF_ERROR(stream.value()->Synchronize());
  return part.value().data;
}

}  // namespace gradientflow
