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

// residual = finite(scale * from).
template <typename From, int kWidth>
struct RestoreBody {
  const From* from;
  float* residual;
  float scale;
  bool finite_too;  // Write what is finite: not where it is there already.
  RowBits<From, kWidth> rows[kUnroll];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    rows[u].template Load<kWhole>(from + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float v[kPerLane];
    rows[u].Get(v);
    bool write = finite_too;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      v[j] *= scale;
      if (!IsFinite(v[j])) {
        v[j] = 0;
        write = true;
      }
    }
    if (write) {
      StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, v);
    }
  }
};

// Calls visit(body) with what is to be done to the run.
template <typename T, int kWidth, typename Visit>
__device__ void WithBody(const ChunkRestoreArgs& args, const Run& run,
                         Visit visit) {
  float* residual = args.residual + run.begin;
  if (args.slots[run.chunk] != kNotSent) {
    visit(RestoreBody<T, kWidth>{static_cast<const T*>(args.grads) + run.begin,
                                 residual,
                                 args.scale,
                                 true,
                                 {}});
  } else {
    visit(RestoreBody<float, kWidth>{residual, residual, 1, false, {}});
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
