#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"

namespace gradientflow::kernels {

const ChunkKernelTable& CpuChunkKernels() {
  static constexpr ChunkKernelTable kTable = {
      .name = "cpu",
      .chunk_residual = &cpu::ChunkResidual,
      .chunk_unpack = &cpu::ChunkUnpack,
      .chunk_restore = &cpu::ChunkRestore,
      .chunk_rescale = &cpu::ChunkRescale,
      .top_k = &cpu::TopK,
      .tile_squares = &cpu::TileSquares,
      .lars_rates = &cpu::LarsRates,
      .tile_sgd = &cpu::TileSgd,
  };
  return kTable;
}

}  // namespace gradientflow::kernels
