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

// 128 bytes in flight per thread: enough even for a range of few chunks, which
// keeps few blocks busy.
constexpr int kUnroll = 2;
// Elements of 16 bits keep their rounding error as well, which leaves no
// registers for a second row.
template <typename T>
inline constexpr int kRowsAtOnce = sizeof(T) < sizeof(float) ? 1 : kUnroll;

template <typename T, typename P, int kWidth, int kRows>
struct ResidualBody {
  T* grads;
  float* residual;
  P* packed;  // Null: kept.
  float factor;
  float inverse;  // 1 / factor, if packed.
  bool zero_kept;
  float sums[kPerLane];
  RowBits<T, kWidth> grad_rows[kRows];
  RowBits<float, kWidth> residual_rows[kRows];

  __device__ ResidualBody(const ChunkResidualArgs& args, const Run& run)
      : grads(static_cast<T*>(args.grads) + run.begin),
        residual(args.residual + run.begin),
        packed(nullptr),
        factor(args.keep_factor),
        inverse(1),
        zero_kept(args.zero_kept) {
    const std::uint32_t slot = args.slots[run.chunk];
    if (slot != kNotSent) {
      packed = static_cast<P*>(args.packed) +
               static_cast<std::size_t>(slot - args.first_slot) *
                   args.range.chunk_elements +
               run.offset;
      factor = args.scale;
      inverse = 1 / args.scale;
    }
    Clear();
  }

  __device__ void Clear() {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) sums[j] = 0;
  }

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    grad_rows[u].template Load<kWhole>(grads + at, left);
    residual_rows[u].template Load<kWhole>(residual + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float grad[kPerLane];  // Later the sums.
    float scaled[kPerLane];
    grad_rows[u].Get(grad);
    residual_rows[u].Get(scaled);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float sum = grad[j] + scaled[j];
      sums[j] += fabsf(sum);
      scaled[j] = factor * sum;
      grad[j] = sum;
    }
    if (packed != nullptr) {
      P written[kPerLane];
      Round(scaled, written);
      StoreRow<kWidth, kWhole, Reuse::kSoon>(packed + at, left, written);
      float rest[kPerLane] = {};
      if constexpr (sizeof(T) < sizeof(float)) {
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          rest[j] = Left(grad[j], inverse * ToFloat(written[j]));
        }
      }
      StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, rest);
      return;
    }
    StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, scaled);
    if (zero_kept) {
      constexpr T kZeros[kPerLane] = {};
      StoreRow<kWidth, kWhole, Reuse::kNone>(grads + at, left, kZeros);
    }
  }
};

template <typename T, typename P, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByWarp(ChunkResidualArgs args) {
  const std::size_t step = std::size_t{gridDim.x} * kBlockWarps;
  for (std::size_t item =
           std::size_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
       item < args.range.count; item += step) {
    const Run run = RunOf(args.range, 1, item);
    ResidualBody<T, P, kWidth, 1> body(args, run);
    const float sum = SumByWarp<kWidth>(run.count, body);
    if (body.packed == nullptr && threadIdx.x % kWarp == 0) {
      args.norms[run.chunk] = args.norm_scale * sum;
    }
  }
}

template <typename T, typename P, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByBlock(ChunkResidualArgs args, std::size_t slices, float* partials) {
  const std::size_t items = args.range.count * slices;
  for (std::size_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Run run = RunOf(args.range, slices, item);
    if (run.count == 0) continue;
    constexpr int kRows = kRowsAtOnce<T>;
    ResidualBody<T, P, kWidth, kRows> body(args, run);
    ForRows<kRows>(run.count, body);
    if (body.packed != nullptr) continue;
    const float sum = FoldWarps(FoldRow<kWidth>(body.sums), Shared<float>());
    if (threadIdx.x == 0) {
      const NormSink sink = {args.norm_scale, args.norms, slices, partials};
      sink.Put(run, item, sum);
    }
  }
}

template <typename T, typename P, int kWidth>
int Start(const ChunkResidualArgs& args, void* stream) {
  return LaunchRunsWithNorms<false, &ByWarp<T, P, kWidth>,
                             &ByBlock<T, P, kWidth>>(args, stream);
}

template <typename T, typename P>
int StartTyped(const ChunkResidualArgs& args, void* stream) {
  if (args.range.chunk_elements % 4 == 0 &&
      AlignedFor<4>(static_cast<const T*>(args.grads)) &&
      AlignedFor<4>(args.residual) &&
      AlignedFor<4>(static_cast<const P*>(args.packed))) {
    return Start<T, P, 4>(args, stream);
  }
  return Start<T, P, 1>(args, stream);
}

}  // namespace

int ChunkResidual(const ChunkResidualArgs& args, void* stream) {
  return WithChunkTypes(args, [&](auto grad, auto packed) {
    return StartTyped<decltype(grad), decltype(packed)>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
