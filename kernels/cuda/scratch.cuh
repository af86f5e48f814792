#pragma once

#include <cuda_runtime.h>

#include <cstddef>

// Memory that a call of kernels needs between its launches.
namespace gradientflow::kernels::cuda {

// The pool of the current device that scratch comes from: one of our own, for
// what is set on the default pool changes the host program's memory too. Made
// when first asked for, and kept for the process: the work of some stream may
// still use it when its owner has gone. 0 or a cudaError_t.
int ScratchPool(cudaMemPool_t* pool);

// use(memory), 0 or an error, with `bytes` that are the stream's until all that
// use() submits to it is done.
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
