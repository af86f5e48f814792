#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/functions.h"

namespace gradientflow::kernels {
namespace {

constexpr KernelTable kKernels = {
    "cuda",
    &cuda::Convert,
    &cuda::ReduceMany,
    &cuda::FindNonfinite,
};

constexpr ChunkKernelTable kChunkKernels = {
    "cuda",
    &cuda::ChunkResidual,
    &cuda::ChunkUnpack,
    &cuda::ChunkRestore,
    &cuda::ChunkRescale,
    &cuda::TopK,
    &cuda::TileSquares,
    &cuda::LarsRates,
    &cuda::TileSgd,
};

}  // namespace

const KernelTable* CudaKernels() { return &kKernels; }
const ChunkKernelTable* CudaChunkKernels() { return &kChunkKernels; }

}  // namespace gradientflow::kernels
