#pragma once

#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/kernels.h"

// One warp sums the squares of 4 blocks of SumSquaresArgs, in the order given
// there. If groups of four neighbours are aligned, 8 threads read a row of 32
// elements of their block, and each holds 4 of the block's lanes. Otherwise all
// 32 threads read a row together, and each holds one lane of every block.
// Either way accesses fill whole sectors.
namespace gradientflow::kernels::cuda {

inline constexpr int kWarpSquareBlocks = 4;
inline constexpr auto kSquareRow = static_cast<unsigned>(kSquareLanes);
inline constexpr auto kSquareRows =
    static_cast<unsigned>(kSquareBlock / kSquareLanes);
inline constexpr auto kWarpSquares =
    static_cast<unsigned>(kWarpSquareBlocks * kSquareBlock);
inline constexpr unsigned kBlockLanes = kWarp / kWarpSquareBlocks;
static_assert(kSquareRow == kWarp && kSquareRow == 4 * kBlockLanes);

__device__ inline double AddSquare(float value, double sum) {
  const auto v = static_cast<double>(value);
  return sum + v * v;
}

// Exchanges values with the thread whose number differs by `mask`.
__device__ inline double Across(double value, unsigned mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}

// The sum of a block's 32 lanes, of which each of its 8 threads has 4. Bits 1
// and 0 of a lane's number are the register's number, bits 4 to 2 the thread's.
// For the first two bits to be folded, each side takes half of the registers.
__device__ inline double FoldBlock(const double (&sums)[4]) {
  const bool upper = (threadIdx.x & 4U) != 0;
  double kept[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const double away = upper ? sums[j] : sums[j + 2];
    kept[j] = (upper ? sums[j + 2] : sums[j]) + Across(away, 4);  // Bit 4.
  }
  const bool odd = (threadIdx.x & 2U) != 0;
  double total =
      (odd ? kept[1] : kept[0]) + Across(odd ? kept[0] : kept[1], 2);  // 3.
  total += Across(total, 1);                                           // 2.
  total += Across(total, 4);                                           // 1.
  return total + Across(total, 2);                                     // 0.
}

// Four elements from src on, of which `left` exist; the others are zeros.
template <bool kWhole, typename T>
__device__ FourOf<T> LoadFour(const T* src, unsigned left) {
  if constexpr (kWhole) {
    return __ldcs(reinterpret_cast<const FourOf<T>*>(src));
  } else {
    T elements[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) elements[i] = i < left ? src[i] : T{};
    return PackFour(elements);
  }
}

// Each thread issues loads of 64 bytes before it uses the first; fewer at the
// end, where it loads single elements and has fewer registers.
template <bool kWhole, typename T>
__device__ double SquaresByFours(const T* src, unsigned n) {
  constexpr unsigned kUnroll = kWhole ? 16 / sizeof(T) : 2;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned first =
      lane / kBlockLanes * (kSquareRows * kSquareRow) + lane % kBlockLanes * 4;
  double sums[4] = {};
#pragma unroll 1
  for (unsigned row = 0; row < kSquareRows; row += kUnroll) {
    FourOf<T> fours[kUnroll];
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u) {
      const unsigned at = first + (row + u) * kSquareRow;
      fours[u] = LoadFour<kWhole>(src + at, at < n ? n - at : 0);
    }
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u) {
      float values[4];
      ToFloats<T>(fours[u], values);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[j] = AddSquare(values[j], sums[j]);
    }
  }
  return FoldBlock(sums);
}

template <typename T>
__device__ double SquaresByOnes(const T* src, unsigned n) {
  constexpr unsigned kUnroll = 8;
  const unsigned lane = threadIdx.x % kWarp;
  double mine = 0;
#pragma unroll 1
  for (unsigned block = 0; block < kWarpSquareBlocks; ++block) {
    double sum = 0;
    for (unsigned row = 0; row < kSquareRows; row += kUnroll) {
      T elements[kUnroll];
#pragma unroll
      for (unsigned u = 0; u < kUnroll; ++u) {
        const unsigned at = (block * kSquareRows + row + u) * kSquareRow + lane;
        elements[u] = at < n ? src[at] : T{};
      }
#pragma unroll
      for (unsigned u = 0; u < kUnroll; ++u) {
        sum = AddSquare(ToFloat(elements[u]), sum);
      }
    }
#pragma unroll
    for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) {
      sum += Across(sum, mask);
    }
    if (lane / kBlockLanes == block) mine = sum;
  }
  return mine;
}

// All threads of the warp must call; thread t gets the sum of block t /
// kBlockLanes. At most kWarpSquares of the `n` elements count.
template <typename T>
__device__ double SquaresOfBlocks(const T* src, std::size_t n) {
  const unsigned there =
      n < kWarpSquares ? static_cast<unsigned>(n) : kWarpSquares;
  if (!AlignedFor<4>(src)) return SquaresByOnes(src, there);
  return there == kWarpSquares ? SquaresByFours<true>(src, there)
                               : SquaresByFours<false>(src, there);
}

}  // namespace gradientflow::kernels::cuda
