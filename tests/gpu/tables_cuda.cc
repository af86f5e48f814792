#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/chunk_oracle.h"

// CUDA's tables on a GPU. The tests' memory is managed: host and GPU use it in
// turn.
namespace gradientflow::kernels::testing {
namespace {

// After an error nothing can continue, since the device keeps its error.
void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("[  FAILED  ] %s: %s\n", what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);
}

}  // namespace

std::vector<const KernelTable*> Tables() { return {CudaKernels()}; }
std::vector<const ChunkKernelTable*> ChunkTables() {
  return {CudaChunkKernels()};
}

void* AllocateTestMemory(std::size_t bytes) {
  void* memory = nullptr;
  Check(cudaMallocManaged(&memory, bytes == 0 ? 1 : bytes),
        "cudaMallocManaged");
  return memory;
}

void FreeTestMemory(void* memory, std::size_t) {
  Check(cudaFree(memory), "cudaFree");
}

void BeforeLaunch() {}

void AfterLaunch() { Check(cudaDeviceSynchronize(), "a kernel"); }

}  // namespace gradientflow::kernels::testing
