#include <cuda_runtime.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/chunks/runs.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/squares.cuh"

namespace gradientflow::kernels::cuda {
namespace {

static_assert(kTileElements == kBlockWarps * kWarpSquares);

// One warp per 4 blocks of SumSquaresArgs; their sums are added up in the order
// of totals. Weights and gradients are read one after the other, since their
// alignments may differ. All threads must call, and all get the sum.
template <typename T>
__device__ double SumOfSquares(const T* src, unsigned n) {
  const unsigned begin = threadIdx.x / kWarp * kWarpSquares;
  double sum = SquaresOfBlocks(src + begin, n > begin ? n - begin : 0);
#pragma unroll
  for (unsigned mask = kBlockLanes; mask < kWarp; mask *= 2) {
    sum += Across(sum, mask);
  }
  return FoldWarps(sum, Shared<double>());
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    Squares(TileSquaresArgs args) {
  for (std::size_t t = blockIdx.x; t < args.count; t += gridDim.x) {
    const Tile tile = args.tiles[t];
    const float* weights = args.weights[tile.tensor];
    if (weights == nullptr) continue;  // For the whole block.
    const double weight_sum =
        SumOfSquares(weights + tile.tensor_begin, tile.count);
    const bool sent =
        args.slots == nullptr || args.slots[tile.chunk] != kNotSent;
    const double gradient_sum =
        sent ? SumOfSquares(static_cast<const T*>(args.grads) + tile.pool_begin,
                            tile.count)
             : 0.0;
    if (threadIdx.x == 0) {
      args.weight_squares[t] = weight_sum;
      args.gradient_squares[t] = gradient_sum;
    }
  }
}

}  // namespace

int TileSquares(const TileSquaresArgs& args, void* stream) {
  if (!IsGradientType(args.type)) return EINVAL;
  if (args.count == 0) return 0;
  const Shape shape = {GridOf(args.count), kBlockThreads,
                       kBlockWarps * sizeof(double)};
  return WithGradientType(args.type, [&](auto grad) {
    return Launch<&Squares<decltype(grad)>>(shape, stream, args);
  });
}

}  // namespace gradientflow::kernels::cuda
