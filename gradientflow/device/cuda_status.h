#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {

// Returns whether the error means that this process cannot use the device any
// more.
bool DeviceIsLost(cudaError_t error);

// Removes `error`, which one of our calls returned, from the thread's "last
// error", where the caller's own CUDA code would find it. Leaves any other
// error there. Returns whether `error` is success.
bool Succeeded(cudaError_t error);

// Returns a status like "cuda:0: cudaMalloc(8 bytes): out of memory
// (cudaErrorMemoryAllocation), at file:line". Also removes the error, as
// Succeeded() does. REQUIRES: error != cudaSuccess.
Status CudaError(cudaError_t error, int device, const std::string& call,
                 const char* file, int line);

}  // namespace gradientflow

// Returns a Status from the enclosing function if the CUDA call did not
// succeed. The arguments after the call describe it, as for StrCat().
#define GF_CUDA_RETURN_IF_ERROR(device, expr, ...)                          \
  do {                                                                      \
    if (const cudaError_t gf_error_ = (expr); gf_error_ != cudaSuccess) {   \
      return ::gradientflow::CudaError(gf_error_, (device),                 \
                                       ::gradientflow::StrCat(__VA_ARGS__), \
                                       __FILE__, __LINE__);                 \
    }                                                                       \
  } while (false)
