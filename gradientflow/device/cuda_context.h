#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "gradientflow/base/status.h"

namespace gradientflow {

// A device's primary context: what cudaSetDevice() makes and makes current.
// Made by hand, because cudaSetDevice() cannot be undone: the way back to the
// device a thread had by default (0) would start CUDA there too, for some
// hundreds of MiB of that device's memory in every process of the job.
class CudaContext {
 public:
  // Starts CUDA on the device if need be. Thread-safe; the result, like the
  // context, lives as long as the process. REQUIRES: the device is there, and
  // 0 <= index < kMaxCudaDevices.
  static Result<const CudaContext*> Of(int index);
  // The same, null if Of() was never called for it. Wait-free.
  static const CudaContext* Find(int index);

  int index() const { return index_; }

 private:
  friend class CurrentContext;
  CudaContext() = default;
  static Result<CudaContext*> Make(int index);

  int index_ = 0;
  CUcontext context_ = nullptr;
  CUresult (*get_current_)(CUcontext*) = nullptr;
  CUresult (*set_current_)(CUcontext) = nullptr;
};

// Makes the device current for the calling thread, and at the end what was
// current before. Nothing is done if check() fails: look at it first.
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
};

}  // namespace gradientflow
