#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {

// Whether the error means that this process can use the device no more.
bool DeviceIsLost(cudaError_t error);

// Takes `error`, of a call of ours, back from the thread's "last error", where
// the caller's own CUDA code would find it; leaves another one there. Returns
// whether there was none.
bool Succeeded(cudaError_t error);

// "cuda:0: cudaMalloc(8 bytes): out of memory (cudaErrorMemoryAllocation), at
// file:line". Also takes the error back, as Succeeded(). REQUIRES: error !=
// cudaSuccess.
Status CudaError(cudaError_t error, int device, const std::string& call,
                 const char* file, int line);

}  // namespace gradientflow

// Leaves the enclosing function with a Status if the CUDA call did not succeed.
// After the call: what to say of it, as for StrCat().
#define GF_CUDA_RETURN_IF_ERROR(device, expr, ...)                          \
  do {                                                                      \
    if (const cudaError_t gf_error_ = (expr); gf_error_ != cudaSuccess) {   \
      return ::gradientflow::CudaError(gf_error_, (device),                 \
                                       ::gradientflow::StrCat(__VA_ARGS__), \
                                       __FILE__, __LINE__);                 \
    }                                                                       \
  } while (false)
