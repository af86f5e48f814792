#include "gradientflow/device/cuda_context.h"

#include <array>
#include <atomic>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_status.h"

namespace gradientflow {
namespace {

// Converts an error of the driver, whose numbers the runtime shares.
cudaError_t FromDriver(CUresult result) {
  return static_cast<cudaError_t>(result);
}

// Looks up a function of the driver through the runtime, which has loaded it.
template <class Function>
Status Load(int device, const char* name, Function* function) {
  constexpr unsigned kVersion = 12000;  // That of the functions' types.
  void* found = nullptr;
  cudaDriverEntryPointQueryResult verdict = cudaDriverEntryPointSymbolNotFound;
  GF_CUDA_RETURN_IF_ERROR(
      device,
      cudaGetDriverEntryPointByVersion(name, &found, kVersion,
                                       cudaEnableDefault, &verdict),
      "cudaGetDriverEntryPointByVersion(", name, ")");
  if (found == nullptr) {
    return Status(StatusCode::kUnimplemented,
                  StrCat("cuda:", device, ": the driver has no ", name));
  }
  *function = reinterpret_cast<Function>(found);
  return Status();
}

std::array<std::atomic<const CudaContext*>, kMaxCudaDevices>& All() {
  static std::array<std::atomic<const CudaContext*>, kMaxCudaDevices> all{};
  return all;
}

}  // namespace

Result<CudaContext*> CudaContext::Make(int index) {
  CudaContext made;
  made.index_ = index;
  CUresult (*get_device)(CUdevice*, int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  GF_RETURN_IF_ERROR(Load(index, "cuDeviceGet", &get_device));
  GF_RETURN_IF_ERROR(Load(index, "cuDevicePrimaryCtxRetain", &retain));
  GF_RETURN_IF_ERROR(Load(index, "cuCtxGetCurrent", &made.get_current_));
  GF_RETURN_IF_ERROR(Load(index, "cuCtxSetCurrent", &made.set_current_));
  CUdevice device = 0;
  GF_CUDA_RETURN_IF_ERROR(index, FromDriver(get_device(&device, index)),
                          "cuDeviceGet(", index, ")");
  GF_CUDA_RETURN_IF_ERROR(index, FromDriver(retain(&made.context_, device)),
                          "cuDevicePrimaryCtxRetain(", index, ")");
  return new CudaContext(made);
}

Result<const CudaContext*> CudaContext::Of(int index) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (const CudaContext* known = Find(index)) return known;
  Result<CudaContext*> made = Make(index);
  GF_RETURN_IF_ERROR(made.status());
  All()[index].store(made.value(), std::memory_order_release);
  return static_cast<const CudaContext*>(made.value());
}

const CudaContext* CudaContext::Find(int index) {
  return All()[index].load(std::memory_order_acquire);
}

Result<int> CudaContext::ExportDmaBuf(std::uintptr_t begin,
                                      std::size_t bytes) const {
  CUresult (*get_handle)(void*, CUdeviceptr, std::size_t, CUmemRangeHandleType,
                         unsigned long long) = nullptr;
  GF_RETURN_IF_ERROR(
      Load(index_, "cuMemGetHandleForAddressRange", &get_handle));
  int fd = -1;
  GF_CUDA_RETURN_IF_ERROR(
      index_,
      FromDriver(get_handle(&fd, begin, bytes,
                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)),
      "cuMemGetHandleForAddressRange(", bytes, " bytes)");
  return fd;
}

CurrentContext::CurrentContext(const CudaContext& context) : context_(context) {
  error_ = FromDriver(context.get_current_(&before_));
  if (error_ == cudaSuccess && before_ != context.context_) {
    error_ = FromDriver(context.set_current_(context.context_));
    changed_ = error_ == cudaSuccess;
  }
  if (error_ == cudaSuccess) {
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
}

CurrentContext::~CurrentContext() {
  if (error_ == cudaSuccess) {
    (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  if (changed_) (void)context_.set_current_(before_);
}

Status CurrentContext::check() const {
  GF_CUDA_RETURN_IF_ERROR(context_.index_, error_, "cuCtxSetCurrent()");
  return Status();
}

}  // namespace gradientflow
