#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"

// One block selects. By radix it finds the key of the k-th chunk, digit by
// digit from the top, and then hands out slots in the order of ids. A warp has
// kItems rows of 32 consecutive ids, so that ballots give the order. The
// workspace is not used.
namespace gradientflow::kernels::cuda {
namespace {

constexpr std::size_t kMaxChunks = std::size_t{1} << 31;
constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostWarps = kMostThreads / kWarp;
constexpr int kDigitBits = 8;
constexpr int kDigits = 32 / kDigitBits;
constexpr unsigned kBins = 1U << kDigitBits;
constexpr unsigned kBinsPerLane = kBins / kWarp;

// Keys are ordered like the chunks, highest first: chunks that are always sent,
// norms of inf or NaN, finite norms, ids beyond the last chunk.
constexpr unsigned kAlwaysKey = 0xFFFFFFFFU;
constexpr unsigned kNonfiniteKey = 0xFF800000U;
constexpr unsigned kAbsentKey = 0;

struct SelectShared {
  unsigned bins[kDigits][kBins];
  unsigned above[kMostWarps];  // By warp: how many keys are above the k-th,
  unsigned equal[kMostWarps];  // and how many equal it.
};

// The key of a finite norm; -0 equals 0.
__device__ unsigned KeyOf(float norm) {
  const unsigned bits = norm == 0 ? 0 : __float_as_uint(norm);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// The bins of a lane are kWarp apart, so that no two lanes use one bank.
__device__ unsigned BinIndex(unsigned digit) {
  return digit % kBinsPerLane * kWarp + digit / kBinsPerLane;
}

__device__ unsigned LanesBelow() { return (1U << (threadIdx.x % kWarp)) - 1; }

// The sum of `v` over this lane and those below.
__device__ unsigned SumUpToLane(unsigned v) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned below = __shfl_up_sync(kAllLanes, v, step);
    if (lane >= step) v += below;
  }
  return v;
}

// The id of this thread's first key; the others follow at distances of one
// warp.
template <int kItems>
__device__ std::size_t FirstId(std::size_t tile) {
  return tile * blockDim.x * kItems +
         std::size_t{threadIdx.x / kWarp} * kWarp * kItems +
         threadIdx.x % kWarp;
}

// The keys of this thread in tile `tile` of blockDim.x * kItems ids. Sets
// *nonfinite if any of the norms is not finite.
template <int kItems>
__device__ void LoadKeys(const TopKArgs& args, std::size_t tile,
                         unsigned (&keys)[kItems], bool* nonfinite) {
  const std::size_t first = FirstId<kItems>(tile);
  float norms[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t id = first + static_cast<std::size_t>(i) * kWarp;
    norms[i] = id < args.chunks ? args.norms[id] : 0.0F;
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t id = first + static_cast<std::size_t>(i) * kWarp;
    const bool finite = IsFinite(norms[i]);
    *nonfinite |= !finite;
    keys[i] = finite ? KeyOf(norms[i]) : kNonfiniteKey;
    if (id >= args.chunks) {
      keys[i] = kAbsentKey;
    } else if (args.always != nullptr && args.always[id] != 0) {
      keys[i] = kAlwaysKey;
    }
  }
}

// Counts digit `digit` (0: the highest) of the keys whose higher digits are
// `prefix`.
template <int kItems>
__device__ void CountDigits(const unsigned (&keys)[kItems], int digit,
                            unsigned prefix, unsigned* bins) {
  const int shift = 32 - kDigitBits * (digit + 1);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (digit == 0 || keys[i] >> (shift + kDigitBits) == prefix) {
      atomicAdd(&bins[BinIndex(keys[i] >> shift & (kBins - 1))], 1U);
    }
  }
}

// Returns the digit of the *wanted-th highest of the keys counted in `bins`,
// and subtracts the keys with higher digits from *wanted. Every warp computes
// it.
__device__ unsigned PickDigit(const unsigned* bins, unsigned* wanted) {
  const unsigned highest = kBins - 1 - threadIdx.x % kWarp * kBinsPerLane;
  unsigned counts[kBinsPerLane];
  unsigned sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kBinsPerLane; ++i) {
    counts[i] = bins[BinIndex(highest - i)];
    sum += counts[i];
  }
  const unsigned upto = SumUpToLane(sum);
  const unsigned above = upto - sum;
  const unsigned found =
      __ballot_sync(kAllLanes, above < *wanted && *wanted <= upto);
  if (found == 0) return kBins - 1;  // None is wanted: *wanted is 0.
  unsigned left = *wanted - above;
  unsigned digit = highest;
  bool passed = true;
#pragma unroll
  for (unsigned i = 0; i < kBinsPerLane; ++i) {
    passed = passed && left > counts[i];
    if (passed) {
      left -= counts[i];
      --digit;
    }
  }
  const int owner = 31 - __clz(static_cast<int>(found));
  *wanted = __shfl_sync(kAllLanes, left, owner);
  return __shfl_sync(kAllLanes, digit, owner);
}

// How many of the keys so far, in the order of ids, are sent.
struct Taken {
  unsigned above;  // All keys above the threshold,
  unsigned equal;  // and the first `equal_wanted` that equal it.
};

// Moves `taken` from before the tile to before this warp's keys; returns its
// value after the tile. All threads must call, for one tile or for one after
// another.
template <int kItems, bool kOneTile>
__device__ Taken AdvanceToWarp(const unsigned (&keys)[kItems],
                               unsigned threshold, SelectShared* shared,
                               Taken* taken) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  unsigned above = 0;
  unsigned equal = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    above += static_cast<unsigned>(
        __popc(__ballot_sync(kAllLanes, keys[i] > threshold)));
    equal += static_cast<unsigned>(
        __popc(__ballot_sync(kAllLanes, keys[i] == threshold)));
  }
  // The previous tile's counts have been read.
  if constexpr (!kOneTile) __syncthreads();
  if (lane == 0) {
    shared->above[warp] = above;
    shared->equal[warp] = equal;
  }
  __syncthreads();
  const int mine = static_cast<int>(warp);
  constexpr int kLast = static_cast<int>(kWarp) - 1;
  const bool is_warp = lane < blockDim.x / kWarp;
  const unsigned above_upto = SumUpToLane(is_warp ? shared->above[lane] : 0);
  const unsigned equal_upto = SumUpToLane(is_warp ? shared->equal[lane] : 0);
  const Taken after = {
      taken->above + __shfl_sync(kAllLanes, above_upto, kLast),
      taken->equal + __shfl_sync(kAllLanes, equal_upto, kLast)};
  taken->above += __shfl_sync(kAllLanes, above_upto, mine) - above;
  taken->equal += __shfl_sync(kAllLanes, equal_upto, mine) - equal;
  return after;
}

// Writes slots and selected of this warp's keys. `taken` is the state before
// them.
template <int kItems>
__device__ void HandOut(const TopKArgs& args, std::size_t tile,
                        const unsigned (&keys)[kItems], unsigned threshold,
                        unsigned equal_wanted, Taken taken) {
  const std::size_t first = FirstId<kItems>(tile);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t id = first + static_cast<std::size_t>(i) * kWarp;
    const unsigned is_above = __ballot_sync(kAllLanes, keys[i] > threshold);
    const unsigned is_equal = __ballot_sync(kAllLanes, keys[i] == threshold);
    const unsigned above =
        taken.above + static_cast<unsigned>(__popc(is_above & LanesBelow()));
    const unsigned equal =
        taken.equal + static_cast<unsigned>(__popc(is_equal & LanesBelow()));
    const bool sent =
        keys[i] > threshold || (keys[i] == threshold && equal < equal_wanted);
    if (id < args.chunks) {
      const unsigned slot =
          above + (equal < equal_wanted ? equal : equal_wanted);
      args.slots[id] = sent ? slot : kNotSent;
      args.selected[id] = sent ? 1 : 0;
    }
    taken.above += static_cast<unsigned>(__popc(is_above));
    taken.equal += static_cast<unsigned>(__popc(is_equal));
  }
}

// kOneTile: all keys stay in registers; else each pass reads the norms again.
template <int kItems, bool kOneTile>
__global__ void __launch_bounds__(kMostThreads) Select(TopKArgs args) {
  auto* shared = Shared<SelectShared>();
  unsigned* bins = &shared->bins[0][0];
  // A large block has one round: nvcc need not unroll it.
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < kDigits * kBins; i += blockDim.x) {
    bins[i] = 0;
  }
  const std::size_t tile_keys = std::size_t{blockDim.x} * kItems;
  const std::size_t tiles =
      kOneTile ? 1 : (args.chunks + tile_keys - 1) / tile_keys;
  unsigned keys[kItems];
  bool nonfinite = false;
  if (kOneTile) LoadKeys(args, 0, keys, &nonfinite);
  __syncthreads();

  unsigned threshold = 0;
  auto wanted = static_cast<unsigned>(args.k);
  for (int digit = 0; digit < kDigits; ++digit) {
    unsigned* counts = shared->bins[digit];
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      if (!kOneTile) LoadKeys(args, tile, keys, &nonfinite);
      CountDigits(keys, digit, threshold, counts);
    }
    __syncthreads();
    threshold = threshold << kDigitBits | PickDigit(counts, &wanted);
  }

  Taken taken = {0, 0};
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    if (!kOneTile) LoadKeys(args, tile, keys, &nonfinite);
    Taken before = taken;
    taken = AdvanceToWarp<kItems, kOneTile>(keys, threshold, shared, &before);
    HandOut(args, tile, keys, threshold, wanted, before);
  }
  const unsigned any = __ballot_sync(kAllLanes, nonfinite);
  if (any != 0 && args.nonfinite != nullptr && threadIdx.x % kWarp == 0) {
    atomicExch(args.nonfinite, 1U);
  }
}

// Launches as many warps as there are rows, up to the limit.
template <int kItems, bool kOneTile>
int Start(const TopKArgs& args, void* stream) {
  constexpr std::size_t kPerWarp = std::size_t{kWarp} * kItems;
  const std::size_t warps = std::min<std::size_t>(
      kMostWarps, (args.chunks + kPerWarp - 1) / kPerWarp);
  const Shape shape = {1, static_cast<unsigned>(warps) * kWarp,
                       sizeof(SelectShared)};
  return Launch<&Select<kItems, kOneTile>>(shape, stream, args);
}

}  // namespace

int TopK(const TopKArgs& args, void* stream) {
  if (args.k > args.chunks || args.chunks > kMaxChunks) return EINVAL;
  if (args.chunks == 0) return 0;
  constexpr int kFew = 4;
  constexpr int kMany = 16;
  if (args.chunks <= std::size_t{kMostThreads} * kFew) {
    return Start<kFew, true>(args, stream);
  }
  if (args.chunks <= std::size_t{kMostThreads} * kMany) {
    return Start<kMany, true>(args, stream);
  }
  return Start<8, false>(args, stream);
}

}  // namespace gradientflow::kernels::cuda
