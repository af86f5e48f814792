#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

// The entry points of the CUDA kernels, for cuda/table.cu. Each has a file of
// its name, here or in cuda/chunks. kernels.h and chunk_kernels.h have the
// contracts. `stream` is a cudaStream_t of the current device.
namespace gradientflow::kernels::cuda {

int Convert(const ConvertArgs& args, void* stream);
int ReduceMany(const ReduceManyArgs& args, void* stream);
int FindNonfinite(const FindNonfiniteArgs& args, void* stream);

int ChunkResidual(const ChunkResidualArgs& args, void* stream);
int ChunkUnpack(const ChunkUnpackArgs& args, void* stream);
int ChunkRestore(const ChunkRestoreArgs& args, void* stream);
int ChunkRescale(const ChunkRescaleArgs& args, void* stream);
int TopK(const TopKArgs& args, void* stream);
int TileSquares(const TileSquaresArgs& args, void* stream);
int LarsRates(const LarsRatesArgs& args, void* stream);
int TileSgd(const TileSgdArgs& args, void* stream);

}  // namespace gradientflow::kernels::cuda
