#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gradientflow/base/status.h"

namespace gradientflow {

// A device's primary context: what cudaSetDevice() creates and makes current.
// It is made by hand here, because cudaSetDevice() cannot be undone: to go back
// to the device that a thread had by default (0) would start CUDA on that
// device, too, which takes some hundreds of MiB of its memory for every process
// of the job.
class CudaContext {
 public:
  // Starts CUDA on the device if need be. Thread-safe. The result, like the
  // context, lives as long as the process. REQUIRES that the device exists and
  // 0 <= index < kMaxCudaDevices.
  static Result<const CudaContext*> Of(int index);
  // The same, but returns null if Of() was never called for the device.
  // Wait-free.
  static const CudaContext* Find(int index);

  int index() const { return index_; }

  // Returns a descriptor for whole pages of memory that cudaMalloc() gave.
  // REQUIRES that the context is current. kUnimplemented if the driver or the
  // device exports none.
  Result<int> ExportDmaBuf(std::uintptr_t begin, std::size_t bytes) const;

 private:
  friend class CurrentContext;
  CudaContext() = default;
  static Result<CudaContext*> Make(int index);

  int index_ = 0;
  CUcontext context_ = nullptr;
  CUresult (*get_current_)(CUcontext*) = nullptr;
  CUresult (*set_current_)(CUcontext) = nullptr;
};

// Makes a device current for the calling thread, and restores the previous
// context at the end. Check check() first: if it fails, nothing was changed.
//
// While a thread captures a stream into a graph, as PyTorch does by default,
// CUDA refuses calls such as cudaEventQuery() and cudaMalloc() of all threads,
// and the capture is lost, too. Our calls have nothing to do with it, so they
// are exempt from that.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  cudaError_t error() const { return error_; }
  Status check() const;

 private:
  const CudaContext& context_;
  CUcontext before_ = nullptr;
  cudaError_t error_ = cudaSuccess;
  bool changed_ = false;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace gradientflow
