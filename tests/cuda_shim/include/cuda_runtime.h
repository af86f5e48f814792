#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cuda_shim/cuda_shim.h"

// What kernels/cuda takes of CUDA (kernels/cuda/launch.cuh has the list), on a
// CPU: see README.md. What is not here does not compile, and is to be added
// with its meaning. Names are NVIDIA's.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
// For `extern __shared__` only: a __shared__ array inside a kernel does not
// compile, since it could not be poisoned and guarded.
#define __shared__ __thread

struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)
      : x(x_in), y(y_in), z(z_in) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// Errors, with NVIDIA's numbers.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotSupported = 801,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device);

// There is one stream, and all its work is done when a call returns.
using cudaStream_t = struct CUstream_st*;
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone = 0 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  cudaMemAllocationHandleType handleTypes;
  cudaMemLocation location;
};
enum cudaMemPoolAttr {
  cudaMemPoolReuseAllowInternalDependencies = 3,
  cudaMemPoolAttrReleaseThreshold = 4,
};
using cudaMemPool_t = struct CUmemPoolHandle_st*;
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr,
                                    void* value);

// Memory for kernels only: a host that touches it gets SIGSEGV. It is full of
// NaNs and has guarded borders, and the process aborts at its end if any is
// left. The pool must have been made with all the attributes that ours has; the
// default pool is the host program's.
cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes,
                                    cudaMemPool_t pool, cudaStream_t);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t);
cudaError_t cudaMemsetAsync(void* pointer, int byte, std::size_t bytes,
                            cudaStream_t = nullptr);
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes,
                            cudaMemcpyKind, cudaStream_t = nullptr);

// Loads the kernel (cuda_shim.h, RequireLoaded()), and reports nothing about
// it.
struct cudaFuncAttributes {};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int);
template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...),
                                 cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute,
                              value);
}

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace gradientflow::cuda_shim {
// `run(body)` runs one thread of the kernel; `kernel` is its address, and
// `name` is its name in messages.
struct Kernel {
  const void* address;
  const char* name;
  void (*run)(void* body);
  void* body;
};
cudaError_t Launch(const cudaLaunchConfig_t& config, const Kernel& kernel);
}  // namespace gradientflow::cuda_shim

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Params...), Args&&... args) {
  const std::tuple<Params...> values(std::forward<Args>(args)...);
  auto body = [&] { std::apply(kernel, values); };
  return gradientflow::cuda_shim::Launch(
      *config,
      {reinterpret_cast<const void*>(kernel), __PRETTY_FUNCTION__,
       [](void* one) { (*static_cast<decltype(body)*>(one))(); }, &body});
}

#include "tests/cuda_shim/include/device_functions.h"

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
