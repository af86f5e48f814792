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

constexpr int kUnroll = 2;

__device__ inline float Finite(float v) { return IsFinite(v) ? v : 0.0F; }

template <typename T, int kWidth, bool kSent>
struct RestoreBody {
  const T* grads;
  float* residual;
  float scale;
  RowBits<T, kWidth> grad_rows[kUnroll];
  RowBits<float, kWidth> residual_rows[kUnroll];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    if constexpr (kSent) grad_rows[u].template Load<kWhole>(grads + at, left);
    residual_rows[u].template Load<kWhole>(residual + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float grad[kPerLane] = {};
    float v[kPerLane];
    if constexpr (kSent) grad_rows[u].Get(grad);
    residual_rows[u].Get(v);
    // Kept values that are finite are already in place.
    bool write = kSent;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      write |= !IsFinite(v[j]);
      v[j] = Finite(v[j]);
      if (kSent) v[j] = Finite(v[j] + Finite(scale * grad[j]));
    }
    if (write) {
      StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, v);
    }
  }
};

// Calls visit(body) with the body that restores the run.
template <typename T, int kWidth, typename Visit>
__device__ void WithBody(const ChunkRestoreArgs& args, const Run& run,
                         Visit visit) {
  const T* grads = static_cast<const T*>(args.grads) + run.begin;
  float* residual = args.residual + run.begin;
  if (args.slots[run.chunk] != kNotSent) {
    visit(RestoreBody<T, kWidth, true>{grads, residual, args.scale, {}, {}});
  } else {
    visit(RestoreBody<T, kWidth, false>{grads, residual, 1, {}, {}});
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByWarp(ChunkRestoreArgs args) {
  const std::size_t step = std::size_t{gridDim.x} * kBlockWarps;
  for (std::size_t item =
           std::size_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
       item < args.range.count; item += step) {
    const Run run = RunOf(args.range, 1, item);
    WithBody<T, kWidth>(args, run, [&run](auto body) {
      for (unsigned at = 0; at < run.count; at += kRow) {
        body.template Load<false>(0, at, run.count - at);
        body.template Use<false>(0, at, run.count - at);
      }
    });
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByBlock(ChunkRestoreArgs args, std::size_t slices, float*) {
  const std::size_t items = args.range.count * slices;
  for (std::size_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Run run = RunOf(args.range, slices, item);
    WithBody<T, kWidth>(
        args, run, [&run](auto body) { ForRows<kUnroll>(run.count, body); });
  }
}

template <typename T, int kWidth>
int Start(const ChunkRestoreArgs& args, void* stream) {
  return LaunchRuns<&ByWarp<T, kWidth>, &ByBlock<T, kWidth>>(args, nullptr,
                                                             stream);
}

}  // namespace

int ChunkRestore(const ChunkRestoreArgs& args, void* stream) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type)) return EINVAL;
  if (args.range.count == 0) return 0;
  return WithGradientType(args.type, [&](auto grad) {
    using T = decltype(grad);
    if (args.range.chunk_elements % 4 == 0 &&
        AlignedFor<4>(static_cast<const T*>(args.grads)) &&
        AlignedFor<4>(args.residual)) {
      return Start<T, 4>(args, stream);
    }
    return Start<T, 1>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
