#include <cuda_runtime.h>

#include <cmath>
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

// Few chunks were sent, so few blocks are at work: each thread has 64 bytes of
// the packed chunk in flight, whatever its type. (Single elements take a
// register each, so with them it is 32 bytes of 16-bit types.)
template <typename P, int kWidth>
inline constexpr int kUnroll = kWidth == 4 && sizeof(P) == 2 ? 4 : 2;

template <typename T, typename P, int kWidth, int kRows>
struct UnpackBody {
  T* grads;
  const P* packed;
  float scale;
  bool nonfinite;
  float sums[kPerLane];
  RowBits<P, kWidth> rows[kRows];

  // REQUIRES: the run's chunk was sent.
  __device__ UnpackBody(const ChunkUnpackArgs& args, const Run& run)
      : grads(static_cast<T*>(args.grads) + run.begin),
        packed(
            static_cast<const P*>(args.packed) +
            static_cast<std::size_t>(args.slots[run.chunk] - args.first_slot) *
                args.range.chunk_elements +
            run.offset),
        scale(args.scale),
        nonfinite(false) {
    Clear();
  }

  __device__ void Clear() {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) sums[j] = 0;
  }

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    rows[u].template Load<kWhole>(packed + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float sent[kPerLane];
    T written[kPerLane];
    rows[u].Get(sent);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) sent[j] *= scale;
    Round(sent, written);
    StoreRow<kWidth, kWhole, Reuse::kSoon>(grads + at, left, written);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float v = ToFloat(written[j]);
      sums[j] += fabsf(v);
      nonfinite |= !IsFinite(v);
    }
  }

  // All lanes of the warp must call.
  __device__ void Report(std::uint32_t* flag) const {
    const unsigned lanes = __ballot_sync(kAllLanes, nonfinite);
    if (lanes != 0 && flag != nullptr && threadIdx.x % kWarp == 0) {
      atomicExch(flag, 1U);
    }
  }
};

// Writes the mark of a kept chunk to the run, if it is not finite. Thread
// `thread` of `threads` that share the run.
template <typename T, typename P>
__device__ void TakeMark(const ChunkUnpackArgs& args, const Run& run,
                         unsigned thread, unsigned threads) {
  if (args.marks == nullptr) return;
  const float mark = ToFloat(static_cast<const P*>(args.marks)[run.chunk]);
  if (IsFinite(mark)) return;
  T* const grads = static_cast<T*>(args.grads) + run.begin;
  for (unsigned i = thread; i < run.count; i += threads) {
    grads[i] = FromFloat<T>(mark);
  }
  if (thread == 0 && args.nonfinite != nullptr) atomicExch(args.nonfinite, 1U);
}

template <typename T, typename P, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByWarp(ChunkUnpackArgs args) {
  const std::size_t step = std::size_t{gridDim.x} * kBlockWarps;
  for (std::size_t item =
           std::size_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
       item < args.range.count; item += step) {
    const Run run = RunOf(args.range, 1, item);
    if (args.slots[run.chunk] == kNotSent) {
      TakeMark<T, P>(args, run, threadIdx.x % kWarp, kWarp);
      continue;
    }
    UnpackBody<T, P, kWidth, 1> body(args, run);
    const float sum = SumByWarp<kWidth>(run.count, body);
    body.Report(args.nonfinite);
    if (threadIdx.x % kWarp == 0) {
      args.norms[run.chunk] = args.norm_scale * sum;
    }
  }
}

template <typename T, typename P, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByBlock(ChunkUnpackArgs args, std::size_t slices, float* partials) {
  const std::size_t items = args.range.count * slices;
  for (std::size_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Run run = RunOf(args.range, slices, item);
    if (run.count == 0) continue;
    if (args.slots[run.chunk] == kNotSent) {
      TakeMark<T, P>(args, run, threadIdx.x, kBlockThreads);
      continue;
    }
    UnpackBody<T, P, kWidth, kUnroll<P, kWidth>> body(args, run);
    ForRows<kUnroll<P, kWidth>>(run.count, body);
    body.Report(args.nonfinite);
    const float sum = FoldWarps(FoldRow<kWidth>(body.sums), Shared<float>());
    if (threadIdx.x == 0) {
      const NormSink sink = {args.norm_scale, args.norms, slices, partials};
      sink.Put(run, item, sum);
    }
  }
}

template <typename T, typename P, int kWidth>
int Start(const ChunkUnpackArgs& args, void* stream) {
  return LaunchRunsWithNorms<true, &ByWarp<T, P, kWidth>,
                             &ByBlock<T, P, kWidth>>(args, stream);
}

template <typename T, typename P>
int StartTyped(const ChunkUnpackArgs& args, void* stream) {
  if (args.range.chunk_elements % 4 == 0 &&
      AlignedFor<4>(static_cast<const T*>(args.grads)) &&
      AlignedFor<4>(static_cast<const P*>(args.packed))) {
    return Start<T, P, 4>(args, stream);
  }
  return Start<T, P, 1>(args, stream);
}

}  // namespace

int ChunkUnpack(const ChunkUnpackArgs& args, void* stream) {
  return WithChunkTypes(args, [&](auto grad, auto packed) {
    return StartTyped<decltype(grad), decltype(packed)>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
