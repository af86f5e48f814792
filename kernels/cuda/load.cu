#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.cuh"

namespace gradientflow::kernels {
namespace cuda {
namespace {

constinit const KernelEntry* first_entry = nullptr;

}  // namespace

KernelEntry::KernelEntry(const void* kernel)
    : kernel_(kernel), next_(first_entry) {
  first_entry = this;
}

const KernelEntry* KernelEntry::First() { return first_entry; }

}  // namespace cuda

LoadResult LoadKernels() {
  for (const cuda::KernelEntry* entry = cuda::KernelEntry::First();
       entry != nullptr; entry = entry->next()) {
    cudaFuncAttributes attributes;
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, entry->kernel());
    if (error != cudaSuccess) {
      return {static_cast<int>(error), "cudaFuncGetAttributes(a kernel)"};
    }
  }
  cudaMemPool_t pool = nullptr;
  return {cuda::ScratchPool(&pool), "cudaMemPoolCreate(for scratch)"};
}

}  // namespace gradientflow::kernels
