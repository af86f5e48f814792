#include <cstddef>
#include <cstdlib>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"
#include "tests/cuda_shim/cuda_shim.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/chunk_oracle.h"

// CUDA's tables on the CPU.
namespace gradientflow::kernels::testing {
std::vector<const KernelTable*> Tables() { return {CudaKernels()}; }
std::vector<const ChunkKernelTable*> ChunkTables() {
  return {CudaChunkKernels()};
}

void* AllocateTestMemory(std::size_t bytes) {
  return cuda_shim::AllocateManaged(bytes);
}
void FreeTestMemory(void* memory, std::size_t) {
  cuda_shim::FreeManaged(memory);
}

void BeforeLaunch() {
  // As when a device is opened. A launch of any other kernel ends the test.
  static const int error = [] {
    cuda_shim::RequireLoaded();
    return LoadKernels().error;
  }();
  if (error != 0) std::abort();
  cuda_shim::LetHostTouchManaged(false);
}
void AfterLaunch() { cuda_shim::LetHostTouchManaged(true); }

}  // namespace gradientflow::kernels::testing
