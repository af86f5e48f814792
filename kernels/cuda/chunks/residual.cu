#include <cuda_runtime.h>

#include <cerrno>
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

// kApart: the residual is in memory of its own, else in the gradients.
template <typename T, typename P, int kWidth, int kRows, bool kApart>
struct ResidualBody {
  T* grads;
  float* residual;
  P* packed;  // Null: kept.
  float factor;
  float inverse;  // 1 / factor, if packed.
  bool zero_kept;
  float sums[kPerLane];
  RowBits<T, kWidth> grad_rows[kRows];
  RowBits<float, kWidth> residual_rows[kApart ? kRows : 1];

  __device__ ResidualBody(const ChunkResidualArgs& args, const Run& run)
      : grads(static_cast<T*>(args.grads) + run.begin),
        residual(kApart ? args.residual + run.begin : nullptr),
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
    if constexpr (kApart) {
      residual_rows[u].template Load<kWhole>(residual + at, left);
    }
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float grad[kPerLane];  // Later the sums.
    float scaled[kPerLane];
    grad_rows[u].Get(grad);
    if constexpr (kApart) residual_rows[u].Get(scaled);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float sum = kApart ? grad[j] + scaled[j] : grad[j];
      sums[j] += fabsf(sum);
      scaled[j] = factor * sum;
      grad[j] = sum;
    }
    if (packed != nullptr) {
      P written[kPerLane];
      Round(scaled, written);
      StoreRow<kWidth, kWhole, Reuse::kSoon>(packed + at, left, written);
      if constexpr (kApart) KeepRest<kWhole>(grad, written, at, left);
      return;
    }
    Keep<kWhole>(scaled, at, left);
  }

  template <bool kWhole>
  __device__ void KeepRest(const float (&sum)[kPerLane],
                           const P (&written)[kPerLane], unsigned at,
                           unsigned left) {
    float rest[kPerLane] = {};
    if constexpr (sizeof(T) < sizeof(float)) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        rest[j] = Left(sum[j], inverse * ToFloat(written[j]));
      }
    }
    StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, rest);
  }

  template <bool kWhole>
  __device__ void Keep(const float (&scaled)[kPerLane], unsigned at,
                       unsigned left) {
    T in_gradients[kPerLane] = {};
    if constexpr (kApart) {
      StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, scaled);
      if (!zero_kept) return;
    } else {
      if (factor == 1) return;  // They are what is kept.
      Round(scaled, in_gradients);
    }
    StoreRow<kWidth, kWhole, Reuse::kNone>(grads + at, left, in_gradients);
  }
};

template <typename T, typename P, int kWidth, bool kApart>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByWarp(ChunkResidualArgs args) {
  const std::size_t step = std::size_t{gridDim.x} * kBlockWarps;
  for (std::size_t item =
           std::size_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
       item < args.range.count; item += step) {
    const Run run = RunOf(args.range, 1, item);
    ResidualBody<T, P, kWidth, 1, kApart> body(args, run);
    const float sum = SumByWarp<kWidth>(run.count, body);
    if (body.packed == nullptr && threadIdx.x % kWarp == 0) {
      args.norms[run.chunk] = args.norm_scale * sum;
    }
  }
}

template <typename T, typename P, int kWidth, bool kApart>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByBlock(ChunkResidualArgs args, std::size_t slices, float* partials) {
  const std::size_t items = args.range.count * slices;
  for (std::size_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Run run = RunOf(args.range, slices, item);
    if (run.count == 0) continue;
    constexpr int kRows = kRowsAtOnce<T>;
    ResidualBody<T, P, kWidth, kRows, kApart> body(args, run);
    ForRows<kRows>(run.count, body);
    if (body.packed != nullptr) continue;
    const float sum = FoldWarps(FoldRow<kWidth>(body.sums), Shared<float>());
    if (threadIdx.x == 0) {
      const NormSink sink = {args.norm_scale, args.norms, slices, partials};
      sink.Put(run, item, sum);
    }
  }
}

template <typename T, typename P, int kWidth, bool kApart>
int StartIn(const ChunkResidualArgs& args, void* stream) {
  return LaunchRunsWithNorms<false, &ByWarp<T, P, kWidth, kApart>,
                             &ByBlock<T, P, kWidth, kApart>>(args, stream);
}

template <typename T, typename P, int kWidth>
int Start(const ChunkResidualArgs& args, void* stream) {
  return args.residual != nullptr ? StartIn<T, P, kWidth, true>(args, stream)
                                  : StartIn<T, P, kWidth, false>(args, stream);
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
  if (args.residual == nullptr && args.zero_kept) return EINVAL;
  return WithChunkTypes(args, [&](auto grad, auto packed) {
    return StartTyped<decltype(grad), decltype(packed)>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
