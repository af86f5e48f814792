#include "kernels/cuda/cuda_kernels.h"

// A build without CUDA: there are no tables.
namespace gradientflow::kernels {

const KernelTable* CudaKernels() { return nullptr; }
const ChunkKernelTable* CudaChunkKernels() { return nullptr; }

}  // namespace gradientflow::kernels
