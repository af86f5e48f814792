#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.cuh"
#include "kernels/cuda/span.cuh"
#include "kernels/cuda/squares.cuh"
#include "kernels/cuda/sum.cuh"

namespace gradientflow::kernels::cuda {
namespace {

static_assert(kSquareTotals == kTotalThreads);

// One warp per 4 blocks of SumSquaresArgs.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    SumBlocks(const T* src, const std::size_t n, const std::size_t blocks,
              double* partials) {
  const std::size_t thread =
      blockIdx.x * std::size_t{kBlockThreads} + threadIdx.x;
  const std::size_t stride = gridDim.x * std::size_t{kBlockThreads};
  for (std::size_t at = thread; at / kWarp * kWarpSquareBlocks < blocks;
       at += stride) {
    const std::size_t begin = at / kWarp * kWarpSquares;
    const double sum = SquaresOfBlocks(src + begin, n - begin);
    const std::size_t block = at / kBlockLanes;
    if (at % kBlockLanes == 0 && block < blocks) partials[block] = sum;
  }
}

template <typename T>
int Run(const SumSquaresArgs& args, void* stream) {
  if (args.n == 0) return 0;
  const std::size_t blocks = (args.n + kSquareBlock - 1) / kSquareBlock;
  return WithScratch(blocks * sizeof(double), stream, [&](void* memory) {
    auto* partials = static_cast<double*>(memory);
    Shape shape;
    shape.threads = kBlockThreads;
    shape.blocks =
        BlocksFor(blocks, kBlockWarps * kWarpSquareBlocks, kSpanBlocks);
    const int error =
        Launch<&SumBlocks<T>>(shape, stream, static_cast<const T*>(args.src),
                              args.n, blocks, partials);
    if (error != 0) return error;
    return LaunchTotal(partials, blocks, 1, args.sum, stream);
  });
}

}  // namespace

int SumSquares(const SumSquaresArgs& args, void* stream) {
  return WithGradientType(
      args.type, [&](auto t) { return Run<decltype(t)>(args, stream); });
}

}  // namespace gradientflow::kernels::cuda
