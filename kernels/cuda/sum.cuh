#pragma once

#include <cstddef>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/scratch.cuh"
#include "kernels/cuda/span.cuh"

// Sums over all elements, in an order that depends on their number alone: not
// on the device, its load or the pointers' alignment. One block sums each tile
// of fixed size; the same thread always adds element i, after the same others.
// The tiles' sums go to memory, and one block adds them up. The amount in
// flight is as span.cuh says: while one block waits at a tile's barrier, the
// others of its multiprocessor load.
namespace gradientflow::kernels::cuda {

inline constexpr unsigned kWarps = kThreads / kWarp;
inline constexpr unsigned kTotalThreads = 1024;

// The sum of the block's values, in thread 0. Pairs of threads whose numbers
// differ in bit 0 are added first, then in bit 1, and so on. `slots` has one
// entry per warp, in shared memory that no thread may still be reading.
template <typename P>
__device__ P SumOfBlock(P value, P* slots) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
#pragma unroll
  for (int far = 1; far < kWarp; far *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, far);
  }
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  if (warp != 0) return value;
  value = lane < blockDim.x / kWarp ? slots[lane] : P{0};
#pragma unroll
  for (int far = 1; far < kWarp; far *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, far);
  }
  return value;
}

// The elements of a tile. Body has kPack; kUnroll; Partial, the type of its
// sums and of its State; and Run, as span.cuh says.
template <class Body>
inline constexpr std::size_t kTileOf = kStep<Body::kPack * Body::kUnroll>;

template <class Body>
__global__ void __launch_bounds__(kThreads, kSpanResidentBlocks)
    SumTiles(const Body body, const std::size_t n,
             typename Body::Partial* partials) {
  using Partial = typename Body::Partial;
  constexpr int kN = Body::kPack;
  // Two sets of slots: the other warps go on while thread 0's warp reads one.
  Partial* slots = Shared<Partial>();
  unsigned set = 0;
  for (std::size_t tile = blockIdx.x; tile * kTileOf<Body> < n;
       tile += gridDim.x) {
    Partial sum = 0;
    const std::size_t begin = tile * kTileOf<Body>;
    std::size_t i = begin + std::size_t{threadIdx.x} * kN;
    if (n - begin >= kTileOf<Body>) {
      body.template Run<kN, Body::kUnroll>(i, sum);
    } else {
      for (; i + kN <= n; i += kStep<kN>) body.template Run<kN, 1>(i, sum);
      const std::size_t end = n - i < kN ? n : i;
#pragma unroll 1
      for (; i < end; ++i) body.template Run<1, 1>(i, sum);
    }
    sum = SumOfBlock(sum, slots + set * kWarps);
    if (threadIdx.x == 0) partials[tile] = sum;
    set ^= 1U;
  }
}

// *result += scale * (the sum of all partials), which is computed in float64.
template <typename Partial, typename Result>
__global__ void __launch_bounds__(kTotalThreads)
    AddPartials(const Partial* partials, const std::size_t count,
                const float scale, Result* result) {
  constexpr unsigned kAtOnce = 4;
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kAtOnce * kTotalThreads) {
    Partial in[kAtOnce];
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const std::size_t at = i + std::size_t{k} * kTotalThreads;
      in[k] = at < count ? partials[at] : Partial{0};
    }
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) sum += static_cast<double>(in[k]);
  }
  sum = SumOfBlock(sum, Shared<double>());
  if (threadIdx.x == 0) {
    *result += static_cast<Result>(scale) * static_cast<Result>(sum);
  }
}

// Launches AddPartials for `partials`, which are on the device.
template <typename Partial, typename Result>
int LaunchTotal(const Partial* partials, std::size_t count, float scale,
                Result* result, void* stream) {
  Shape one;
  one.threads = kTotalThreads;
  one.shared_bytes = kTotalThreads / kWarp * sizeof(double);
  return Launch<&AddPartials<Partial, Result>>(one, stream, partials, count,
                                               scale, result);
}

// Runs `body` over [0, n); then adds scale * its sum to *result on the device.
template <class Body, typename Result>
int LaunchSum(const Body& body, std::size_t n, float scale, Result* result,
              void* stream) {
  using Partial = typename Body::Partial;
  if (n == 0) return 0;
  const std::size_t tiles = (n + kTileOf<Body> - 1) / kTileOf<Body>;
  return WithScratch(tiles * sizeof(Partial), stream, [&](void* memory) {
    auto* partials = static_cast<Partial*>(memory);
    Shape shape;
    shape.threads = kThreads;
    shape.blocks = BlocksFor(tiles, 1, kSpanBlocks);
    shape.shared_bytes = 2 * kWarps * sizeof(Partial);
    const int error = Launch<&SumTiles<Body>>(shape, stream, body, n, partials);
    if (error != 0) return error;
    return LaunchTotal(partials, tiles, scale, result, stream);
  });
}

// The same with a Body<T, kAligned> whose only pointer is src.
template <template <typename, bool> class Body, typename T, typename Result>
int LaunchSumOf(const T* src, std::size_t n, float scale, Result* result,
                void* stream) {
  Heads<kPackOf<T>> heads;
  heads.Add(src);
  if (heads.aligned()) {
    return LaunchSum(Body<T, true>{src}, n, scale, result, stream);
  }
  return LaunchSum(Body<T, false>{src}, n, scale, result, stream);
}

}  // namespace gradientflow::kernels::cuda
