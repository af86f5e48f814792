#pragma once

#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/kernels.h"

// A warp sums the squares of a block of SumSquaresArgs, in the order that is
// said there: a lane of the header's is an element of rows.cuh's rows.
namespace gradientflow::kernels::cuda {

static_assert(kRow == kSquareLanes);
static_assert(kSquareBlock % kRow == 0);

// Loads go out before the first use: 64 bytes a thread, whatever the type.
// (Single elements take a register each, so there it is 32 bytes of 16-bit
// types.)
template <typename T, int kWidth>
inline constexpr int kSquareUnroll = kWidth == 4 && sizeof(T) == 2 ? 4 : 2;

template <typename T, int kWidth>
struct SquaresBody {
  const T* src;
  double sums[kPerLane];
  RowBits<T, kWidth> rows[kSquareUnroll<T, kWidth>];

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

// All lanes of the warp call, and get the sum. n <= kSquareBlock.
template <int kWidth, typename T>
__device__ double SquaresOfBlock(const T* src, unsigned n) {
  SquaresBody<T, kWidth> body = {src, {}, {}};
  WalkRows<kSquareUnroll<T, kWidth>, 1>(0, n, body);
  return FoldRow<kWidth>(body.sums);
}

// Whichever way `src` can be read.
template <typename T>
__device__ double SquaresOfBlock(const T* src, unsigned n) {
  return AlignedFor<4>(src) ? SquaresOfBlock<4>(src, n)
                            : SquaresOfBlock<1>(src, n);
}

}  // namespace gradientflow::kernels::cuda
