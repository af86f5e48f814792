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

namespace gradientflow::kernels::cuda {
namespace {

// Weights and gradients are read one after the other, for they need not be
// aligned alike: 64 bytes a thread in flight, whatever the type. (Single
// elements take a register each, so there it is 32 bytes of 16-bit types.)
template <typename T, int kWidth>
inline constexpr int kUnroll = kWidth == 4 && sizeof(T) == 2 ? 4 : 2;

template <typename T, int kWidth>
struct SquaresBody {
  const T* src;
  double sums[kPerLane];
  RowBits<T, kWidth> rows[kUnroll<T, kWidth>];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    rows[u].template Load<kWhole>(src + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned, unsigned) {
    float values[kPerLane];
    rows[u].Get(values);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const auto v = static_cast<double>(values[j]);
      sums[j] += v * v;
    }
  }
};

template <int kWidth, typename T>
__device__ double SumOfWarp(const T* src, unsigned n) {
  SquaresBody<T, kWidth> body = {src, {}, {}};
  ForRows<kUnroll<T, kWidth>>(n, body);
  return FoldRow<kWidth>(body.sums);
}

// All threads of the block call, and all get the sum.
template <typename T>
__device__ double SumOfSquares(const T* src, unsigned n) {
  const double sum =
      AlignedFor<4>(src) ? SumOfWarp<4>(src, n) : SumOfWarp<1>(src, n);
  return FoldWarps(sum, Shared<double>());
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    Squares(TileSquaresArgs args) {
  for (std::size_t t = blockIdx.x; t < args.count; t += gridDim.x) {
    const Tile tile = args.tiles[t];
    const double weight_sum =
        SumOfSquares(static_cast<const float*>(args.weights[tile.tensor]) +
                         tile.tensor_begin,
                     tile.count);
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
