#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

// The CUDA kernels' entry points, for cuda/table.cu: one file each, of the
// function's name, here and in cuda/chunks. Contracts: kernels.h and
// chunk_kernels.h. `stream` is a cudaStream_t of the current device.
namespace gradientflow::kernels::cuda {

int Convert(const ConvertArgs& args, void* stream);
int Accumulate(const AccumulateArgs& args, void* stream);
int ReduceMany(const ReduceManyArgs& args, void* stream);
int Residual(const ResidualArgs& args, void* stream);
int L1Norm(const L1NormArgs& args, void* stream);
int SumSquares(const SumSquaresArgs& args, void* stream);
int FindNonfinite(const FindNonfiniteArgs& args, void* stream);
int Sgd(const SgdArgs& args, void* stream);

int ChunkResidual(const ChunkResidualArgs& args, void* stream);
int ChunkUnpack(const ChunkUnpackArgs& args, void* stream);
int ChunkRestore(const ChunkRestoreArgs& args, void* stream);
int ChunkRescale(const ChunkRescaleArgs& args, void* stream);
int TopK(const TopKArgs& args, void* stream);
int TileSquares(const TileSquaresArgs& args, void* stream);
int LarsRates(const LarsRatesArgs& args, void* stream);
int TileSgd(const TileSgdArgs& args, void* stream);

}  // namespace gradientflow::kernels::cuda
