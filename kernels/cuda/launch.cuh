#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

// How kernels are launched, and how much of the device they take. The kernels
// use only the parts of CUDA that are in this folder's headers and a few
// built-ins, so that tests/cuda_shim can run the same sources on a CPU:
//   threadIdx, blockIdx, blockDim, gridDim (only .x); __syncthreads();
//   __shfl_xor_sync, __shfl_up_sync, __shfl_sync, __ballot_sync (all lanes);
//   atomicAdd, atomicOr, atomicMax, atomicExch on unsigned int; __threadfence;
//   __popc, __clz, __float_as_uint, __uint_as_float; __ldcs, __stcs on uint4
//   and uint2;
//   dynamic shared memory, by Shared<T>() below; scratch.cuh.
namespace gradientflow::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// The block's dynamic shared memory, with as many bytes as the launch
// requested.
extern __shared__ __align__(16) unsigned char gf_shared_memory[];
template <typename T>
__device__ T* Shared() {
  return reinterpret_cast<T*>(gf_shared_memory);
}

struct Shape {
  unsigned blocks = 1;
  unsigned threads = 256;
  std::size_t shared_bytes = 0;
};

// Multiprocessors of the current device; asked for once per device.
int Multiprocessors();

// The number of blocks for a loop over `items` with the stride of the grid:
// enough to fill the device `waves` times, but no more than there is work for.
inline unsigned BlocksFor(std::size_t items, std::size_t items_per_block,
                          int per_multiprocessor) {
  const std::size_t wanted = (items + items_per_block - 1) / items_per_block;
  const auto most = static_cast<std::size_t>(Multiprocessors()) *
                    static_cast<std::size_t>(per_multiprocessor);
  return static_cast<unsigned>(
      std::max<std::size_t>(1, std::min(wanted, most)));
}

// One for every kernel that a Launch() names, whether or not it is reached, so
// that LoadKernels() knows all kernels. Made before main(), and then never
// changed.
class KernelEntry {
 public:
  explicit KernelEntry(const void* kernel);
  KernelEntry(const KernelEntry&) = delete;
  KernelEntry& operator=(const KernelEntry&) = delete;

  static const KernelEntry* First();
  const void* kernel() const { return kernel_; }
  const KernelEntry* next() const { return next_; }

 private:
  const void* const kernel_;
  const KernelEntry* const next_;
};
template <auto kKernel>
inline const KernelEntry kEntryOf(reinterpret_cast<const void*>(kKernel));

template <typename... Params, typename... Args>
int LaunchPointer(void (*kernel)(Params...), const Shape& shape, void* stream,
                  Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<int>(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Launches kKernel(args...); returns 0 or the launch's cudaError_t.
template <auto kKernel, typename... Args>
int Launch(const Shape& shape, void* stream, Args... args) {
  static_cast<void>(&kEntryOf<kKernel>);
  return LaunchPointer(kKernel, shape, stream, args...);
}

}  // namespace gradientflow::kernels::cuda
