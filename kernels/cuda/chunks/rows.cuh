#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

// How a block of 8 warps walks a run of elements, and in which order it sums.
//
// A run is cut into rows of 256 elements; warp w has rows w, w + 8, ... A lane
// holds 8 elements of a row, in groups of kWidth neighbours. kWidth is 4 (one
// access of 16 or 8 bytes per group) if every stream of the run is aligned,
// else 1. Either way the accesses of a warp are contiguous, so that even single
// elements move in whole sectors, and no unaligned head has to be peeled off
// (tile_sgd.cu does, since it writes twice as much).
//
// Element e of each row is added to sum e % 256 of its warp. The 256 sums of a
// warp and then the sums of the 8 warps are folded as one tree. The order of
// the additions depends on the number of elements alone: not on alignment,
// device or grid.
namespace gradientflow::kernels::cuda {

inline constexpr int kPerLane = 8;
inline constexpr unsigned kRow = kWarp * kPerLane;
inline constexpr unsigned kBlockWarps = 8;
inline constexpr unsigned kBlockThreads = kWarp * kBlockWarps;

// Blocks that fit one multiprocessor by their registers. The bytes that 1024
// threads have in flight must hide the latency of memory: some 40 KB on an
// H200. So each thread requests 64 bytes or more before it uses the first.
inline constexpr int kResidentBlocks = 4;

// Data that is used once should not evict from the cache what others read next.
enum class Reuse { kNone, kSoon };

// The index in the row of this lane's j-th element.
template <int kWidth>
__device__ unsigned IndexInRow(int j) {
  const unsigned lane = threadIdx.x % kWarp;
  return static_cast<unsigned>(j / kWidth) * (kWarp * kWidth) + lane * kWidth +
         static_cast<unsigned>(j % kWidth);
}

// The bits of four neighbouring elements, moved in one access.
template <typename T>
using FourOf = std::conditional_t<sizeof(T) == sizeof(float), uint4, uint2>;

__device__ inline uint4 PackFour(const float* in) {
  return {__float_as_uint(in[0]), __float_as_uint(in[1]),
          __float_as_uint(in[2]), __float_as_uint(in[3])};
}
template <typename T>
__device__ uint2 PackFour(const T* in) {
  unsigned bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = in[i].bits;
  return {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
}

template <typename T>
__device__ void ToFloats(uint4 four, float* out) {
  out[0] = __uint_as_float(four.x);
  out[1] = __uint_as_float(four.y);
  out[2] = __uint_as_float(four.z);
  out[3] = __uint_as_float(four.w);
}
template <typename T>
__device__ void ToFloats(uint2 four, float* out) {
  out[0] = ToFloat(T{static_cast<std::uint16_t>(four.x)});
  out[1] = ToFloat(T{static_cast<std::uint16_t>(four.x >> 16)});
  out[2] = ToFloat(T{static_cast<std::uint16_t>(four.y)});
  out[3] = ToFloat(T{static_cast<std::uint16_t>(four.y >> 16)});
}

// A lane's elements of a row, exactly as they were loaded: converting them here
// would wait for memory, and delay further loads.
template <typename T, int kWidth>
struct RowBits {
  static_assert(kWidth == 4);
  FourOf<T> fours[kPerLane / 4];

  // kWhole: the row has all 256 elements. Else it has `left`, and the rest
  // reads as zeros.
  template <bool kWhole>
  __device__ void Load(const T* row, unsigned left) {
#pragma unroll
    for (int g = 0; g < kPerLane / 4; ++g) {
      const unsigned e = IndexInRow<4>(4 * g);
      if constexpr (kWhole) {
        fours[g] = __ldcs(reinterpret_cast<const FourOf<T>*>(row + e));
      } else {
        T elements[4];
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          elements[i] = e + i < left ? row[e + i] : T{};
        }
        fours[g] = PackFour(elements);
      }
    }
  }

  __device__ void Get(float (&out)[kPerLane]) const {
#pragma unroll
    for (int g = 0; g < kPerLane / 4; ++g) ToFloats<T>(fours[g], out + 4 * g);
  }
};

template <typename T>
struct RowBits<T, 1> {
  T elements[kPerLane];

  template <bool kWhole>
  __device__ void Load(const T* row, unsigned left) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const unsigned e = IndexInRow<1>(j);
      elements[j] = kWhole || e < left ? row[e] : T{};
    }
  }

  __device__ void Get(float (&out)[kPerLane]) const {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) out[j] = ToFloat(elements[j]);
  }
};

template <int kWidth, bool kWhole, Reuse kReuse, typename T>
__device__ void StoreRow(T* row, unsigned left, const T (&in)[kPerLane]) {
  if constexpr (kWhole && kWidth == 4) {
#pragma unroll
    for (int g = 0; g < kPerLane / 4; ++g) {
      auto* to = reinterpret_cast<FourOf<T>*>(row + IndexInRow<4>(4 * g));
      if constexpr (kReuse == Reuse::kNone) {
        __stcs(to, PackFour(in + 4 * g));
      } else {
        *to = PackFour(in + 4 * g);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const unsigned e = IndexInRow<kWidth>(j);
      if (kWhole || e < left) row[e] = in[j];
    }
  }
}

template <typename T>
__device__ void Round(const float (&in)[kPerLane], T (&out)[kPerLane]) {
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) out[j] = FromFloat<T>(in[j]);
}

// Adds up the row's 256 sums; all lanes get the total. Halves are added by the
// bits of their index in the row, in the order 7 1 0 6 5 4 3 2, whether a bit
// belongs to the register's number or to the lane's. Destroys the sums.
template <int kWidth, typename Sum>
__device__ Sum FoldRow(Sum (&sums)[kPerLane]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] += sums[j + 4];
  if constexpr (kWidth == 1) {
#pragma unroll
    for (int mask = 2; mask > 0; mask /= 2) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[j] += __shfl_xor_sync(kAllLanes, sums[j], mask);
      }
    }
  }
  Sum total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  constexpr int kLastMask = kWidth == 1 ? 4 : 1;
#pragma unroll
  for (int mask = kWarp / 2; mask >= kLastMask; mask /= 2) {
    total += __shfl_xor_sync(kAllLanes, total, mask);
  }
  return total;
}

// Adds up one value from each warp of the block; all threads get the total.
// `shared` has room for kBlockWarps values. All threads of the block must call.
template <typename Sum>
__device__ Sum FoldWarps(Sum of_warp, Sum* shared) {
  __syncthreads();  // All threads have read the values of the previous call.
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return ((shared[0] + shared[1]) + (shared[2] + shared[3])) +
         ((shared[4] + shared[5]) + (shared[6] + shared[7]));
}

// Calls body.Load<kWhole>(u, at, left) and then body.Use<kWhole>(u, at, left),
// with 0 <= u < kUnroll, for the rows first, first + kStride, ... of n
// elements; a row begins at element `at`. kUnroll loads are issued before the
// first use. REQUIRES: first < kStride.
template <int kUnroll, unsigned kStride, typename Body>
__device__ void WalkRows(unsigned first, unsigned n, Body& body) {
  const unsigned rows = n / kRow;
  for (unsigned row = first; row < rows; row += kStride * kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned mine = row + static_cast<unsigned>(u) * kStride;
      if (mine < rows) body.template Load<true>(u, mine * kRow, kRow);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned mine = row + static_cast<unsigned>(u) * kStride;
      if (mine < rows) body.template Use<true>(u, mine * kRow, kRow);
    }
  }
  if (n % kRow != 0 && rows % kStride == first) {
    body.template Load<false>(0, rows * kRow, n % kRow);
    body.template Use<false>(0, rows * kRow, n % kRow);
  }
}

// The same for this warp's share of the block's rows.
template <int kUnroll, typename Body>
__device__ void ForRows(unsigned n, Body& body) {
  WalkRows<kUnroll, kBlockWarps>(threadIdx.x / kWarp, n, body);
}

// The sum that a block has in body.sums after ForRows(), computed by one warp.
// REQUIRES: n <= kBlockWarps * kRow / 2.
template <int kWidth, typename Body>
__device__ float SumByWarp(unsigned n, Body& body) {
  float rows[kBlockWarps / 2];
#pragma unroll
  for (unsigned r = 0; r < kBlockWarps / 2; ++r) {
    rows[r] = 0;
    const unsigned at = r * kRow;
    if (at >= n) continue;
    body.Clear();
    if (n - at >= kRow) {
      body.template Load<true>(0, at, kRow);
      body.template Use<true>(0, at, kRow);
    } else {
      body.template Load<false>(0, at, n - at);
      body.template Use<false>(0, at, n - at);
    }
    rows[r] = FoldRow<kWidth>(body.sums);
  }
  return (rows[0] + rows[1]) + (rows[2] + rows[3]);
}

// Whether groups of kWidth elements from here on are aligned to their size.
template <int kWidth, typename T>
__host__ __device__ bool AlignedFor(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (kWidth * sizeof(T)) == 0;
}

}  // namespace gradientflow::kernels::cuda
