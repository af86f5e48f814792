#include "kernels/cuda/cuda_kernels.h"

// A build without CUDA: there are no tables.
namespace gradientflow::kernels {

const KernelTable* CudaKernels() { return nullptr; }
const ChunkKernelTable* CudaChunkKernels() { return nullptr; }
LoadResult LoadKernels() { return {0, ""}; }

}  // namespace gradientflow::kernels
