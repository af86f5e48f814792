#pragma once

#include <cuda_runtime.h>

#include <cstddef>

// Memory that a call of kernels needs between its launches.
namespace gradientflow::kernels::cuda {

// The current device's pool for scratch memory. It is our own, because settings
// of the default pool would change the host program's memory too. It is made
// when first asked for, and lives as long as the process, since the work of
// some stream may still use it when its owner has gone. Returns 0 or a
// cudaError_t.
int ScratchPool(cudaMemPool_t* pool);

// Calls use(memory) with `bytes` of memory, which belong to the stream until
// all work that use() submits to it is done. Returns 0 or an error.
template <typename Use>
int WithScratch(std::size_t bytes, void* stream, Use use) {
  cudaMemPool_t pool = nullptr;
  if (const int error = ScratchPool(&pool); error != 0) return error;
  const auto queue = static_cast<cudaStream_t>(stream);
  void* memory = nullptr;
  const cudaError_t allocated =
      cudaMallocFromPoolAsync(&memory, bytes, pool, queue);
  if (allocated != cudaSuccess) return static_cast<int>(allocated);
  const int error = use(memory);
  const cudaError_t freed = cudaFreeAsync(memory, queue);
  return error != 0 ? error : static_cast<int>(freed);
}

}  // namespace gradientflow::kernels::cuda
