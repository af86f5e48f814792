#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.cuh"

// How the chunks of a range are distributed. A tiny chunk is the work of one
// warp, a larger one that of one block. A long chunk is cut into slices of one
// block each, and a second launch adds up their sums. There is one block per
// piece of work, instead of a loop in few blocks: so the device balances sent
// and kept chunks by itself.
namespace gradientflow::kernels::cuda {

inline constexpr std::size_t kMostByWarp = 1024;
inline constexpr std::size_t kMostByBlock = 65536;
inline constexpr std::size_t kSlice = 16384;

// Calls start(T(), P()) with the types behind args.type and args.packed_type,
// if there are chunks to work on. Returns EINVAL if the arguments are wrong.
template <class Args, class Start>
int WithChunkTypes(const Args& args, Start start) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type) ||
      !IsGradientType(args.packed_type)) {
    return EINVAL;
  }
  if (args.range.count == 0) return 0;
  return WithGradientType(args.type, [&](auto grad) {
    return WithGradientType(args.packed_type,
                            [&](auto packed) { return start(grad, packed); });
  });
}

inline unsigned GridOf(std::size_t blocks) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<unsigned>(std::min(blocks, kMost));
}

// Elements [begin, begin + count) of the pool, all in one chunk; the first of
// them is the chunk's `offset`th.
struct Run {
  std::size_t chunk;
  std::size_t begin;
  std::size_t offset;
  unsigned count;
};

// The number of slices of a chunk with so many elements. It depends on the
// length alone, because the order of the chunk's sum depends on it.
__host__ __device__ inline std::size_t SlicesOf(std::size_t elements) {
  return elements <= kMostByBlock ? 1 : (elements + kSlice - 1) / kSlice;
}

__device__ inline std::size_t ChunkLength(const ChunkRange& range,
                                          std::size_t chunk) {
  const std::size_t left = range.elements - chunk * range.chunk_elements;
  return left < range.chunk_elements ? left : range.chunk_elements;
}

// The run of work item `item`, where each chunk of the range has `slices`
// items. The pool's last chunk may have fewer: the count of the rest is 0.
__device__ inline Run RunOf(const ChunkRange& range, std::size_t slices,
                            std::size_t item) {
  Run run = {range.first + item, 0, 0, 0};
  std::size_t slice = 0;
  if (slices > 1) {
    run.chunk = range.first + item / slices;
    slice = item % slices;
  }
  const std::size_t length = ChunkLength(range, run.chunk);
  const std::size_t size = length <= kMostByBlock ? kMostByBlock : kSlice;
  run.offset = slice * size;
  run.begin = run.chunk * range.chunk_elements + run.offset;
  if (run.offset < length) {
    const std::size_t left = length - run.offset;
    run.count = static_cast<unsigned>(left < size ? left : size);
  }
  return run;
}

// Where the sum of a run goes: to the chunk's norm, or to a partial sum if the
// chunk has several slices.
struct NormSink {
  float scale;
  float* norms;
  std::size_t slices;
  float* partials;

  __device__ void Put(const Run& run, std::size_t item, float sum) const {
    if (slices > 1) {
      partials[item] = sum;
    } else {
      norms[run.chunk] = scale * sum;
    }
  }
};

// Computes norms[c] from the partial sums of chunks that were sent (kSent) or
// kept, one block per chunk.
template <bool kSent>
__global__ void __launch_bounds__(kBlockThreads)
    AddSlices(ChunkRange range, const std::uint32_t* slots, NormSink sink) {
  for (std::size_t i = blockIdx.x; i < range.count; i += gridDim.x) {
    const std::size_t chunk = range.first + i;
    if ((slots[chunk] != kNotSent) != kSent) continue;
    const std::size_t slices = SlicesOf(ChunkLength(range, chunk));
    const float* partials = sink.partials + i * sink.slices;
    float sum = 0;
    // A second round is for chunks of more than 4 million elements.
#pragma unroll 1
    for (std::size_t s = threadIdx.x; s < slices; s += kBlockThreads) {
      sum += partials[s];
    }
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, mask);
    }
    sum = FoldWarps(sum, Shared<float>());
    if (threadIdx.x == 0) sink.norms[chunk] = sink.scale * sum;
  }
}

inline constexpr std::size_t kSharedBytes = kBlockWarps * sizeof(float);

inline std::size_t SlicesPerChunk(const ChunkRange& range) {
  return SlicesOf(std::min(range.elements, range.chunk_elements));
}

// Launches one of the two forms of a kernel over the chunks of args.range:
// kByWarp(args), or kByBlock(args, slices, partials). `partials` holds the sums
// of slices, if a chunk has several.
template <auto kByWarp, auto kByBlock, typename Args>
int LaunchRuns(const Args& args, float* partials, void* stream) {
  const ChunkRange& range = args.range;
  if (range.chunk_elements <= kMostByWarp) {
    const Shape shape = {GridOf((range.count + kBlockWarps - 1) / kBlockWarps),
                         kBlockThreads};
    return Launch<kByWarp>(shape, stream, args);
  }
  const std::size_t slices = SlicesPerChunk(range);
  const Shape shape = {GridOf(range.count * slices), kBlockThreads,
                       kSharedBytes};
  return Launch<kByBlock>(shape, stream, args, slices, partials);
}

// The same for kernels that write norms: of the chunks sent, or of those kept.
template <bool kSent, auto kByWarp, auto kByBlock, typename Args>
int LaunchRunsWithNorms(const Args& args, void* stream) {
  const ChunkRange& range = args.range;
  const std::size_t slices = SlicesPerChunk(range);
  if (slices == 1) return LaunchRuns<kByWarp, kByBlock>(args, nullptr, stream);
  const std::size_t bytes = range.count * slices * sizeof(float);
  return WithScratch(bytes, stream, [&](void* memory) {
    auto* partials = static_cast<float*>(memory);
    const int error = LaunchRuns<kByWarp, kByBlock>(args, partials, stream);
    if (error != 0) return error;
    const NormSink sink = {args.norm_scale, args.norms, slices, partials};
    const Shape shape = {GridOf(range.count), kBlockThreads, kSharedBytes};
    return Launch<&AddSlices<kSent>>(shape, stream, range, args.slots, sink);
  });
}

}  // namespace gradientflow::kernels::cuda
