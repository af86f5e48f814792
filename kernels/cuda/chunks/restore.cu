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
constexpr unsigned kNan = 0x7FC00000;

__device__ inline float Finite(float v) { return IsFinite(v) ? v : 0.0F; }

// The pool's tensors (ChunkRestoreArgs::hidden), seen from a run: its element
// `at` is the pool's run_begin + at.
struct Tensors {
  const TensorRun* runs;
  std::size_t count;
  std::size_t run_begin;

  // Whether the element is of a tensor. Skipped steps are rare, so each element
  // is looked up.
  __device__ bool Have(unsigned at) const {
    const std::size_t i = run_begin + at;
    // The first tensor that ends after i, or `count`, is one of [first, last].
    std::size_t first = 0;
    std::size_t last = count;
#pragma unroll 1
    while (first < last) {
      const std::size_t middle = first + (last - first) / 2;
      if (runs[middle].end <= i) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first < count && runs[first].begin <= i;
  }
};

// kApart: the residual is in memory of its own, else in the gradients.
template <typename T, int kWidth, bool kSent, bool kApart>
struct RestoreBody {
  T* grads;
  float* residual;
  float scale;
  Tensors hidden;
  RowBits<T, kWidth> grad_rows[kUnroll];
  RowBits<float, kWidth> residual_rows[kApart ? kUnroll : 1];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    if constexpr (kSent || !kApart) {
      grad_rows[u].template Load<kWhole>(grads + at, left);
    }
    if constexpr (kApart) {
      residual_rows[u].template Load<kWhole>(residual + at, left);
    }
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    if constexpr (kApart) {
      UseApart<kWhole>(u, at, left);
    } else {
      UseGradients<kWhole>(u, at, left);
    }
  }

  // What is finite and need not change is already in place, here and below.
  template <bool kWhole>
  __device__ void UseApart(int u, unsigned at, unsigned left) {
    float grad[kPerLane] = {};
    float v[kPerLane];
    if constexpr (kSent) grad_rows[u].Get(grad);
    residual_rows[u].Get(v);
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
    if (hidden.runs != nullptr) Hide(at, left);
  }

  // Each lane hides what it has loaded itself, so no other still reads it.
  __device__ void Hide(unsigned at, unsigned left) {
#pragma unroll 1
    for (int j = 0; j < kPerLane; ++j) {
      const unsigned e = IndexInRow<kWidth>(j);
      if (e < left && hidden.Have(at + e)) {
        grads[at + e] = FromFloat<T>(__uint_as_float(kNan));
      }
    }
  }

  template <bool kWhole>
  __device__ void UseGradients(int u, unsigned at, unsigned left) {
    float v[kPerLane];
    T written[kPerLane];
    grad_rows[u].Get(v);
    bool write = scale != 1;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      write |= !IsFinite(v[j]);
      v[j] = Finite(scale * v[j]);
    }
    if (!write) return;
    Round(v, written);
    StoreRow<kWidth, kWhole, Reuse::kNone>(grads + at, left, written);
  }
};

// Calls visit(body) with the body that restores the run.
template <typename T, int kWidth, bool kApart, typename Visit>
__device__ void WithBody(const ChunkRestoreArgs& args, const Run& run,
                         Visit visit) {
  T* grads = static_cast<T*>(args.grads) + run.begin;
  float* residual = kApart ? args.residual + run.begin : nullptr;
  const Tensors hidden = {args.hidden, args.hidden_count, run.begin};
  if (args.slots[run.chunk] != kNotSent) {
    visit(RestoreBody<T, kWidth, true, kApart>{
        grads, residual, args.scale, hidden, {}, {}});
  } else {
    visit(RestoreBody<T, kWidth, false, kApart>{
        grads, residual, 1, hidden, {}, {}});
  }
}

__device__ inline bool IsLeftAlone(const ChunkRestoreArgs& args) {
  return args.only_if != nullptr && *args.only_if == 0;
}

template <typename T, int kWidth, bool kApart>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByWarp(ChunkRestoreArgs args) {
  if (IsLeftAlone(args)) return;
  const std::size_t step = std::size_t{gridDim.x} * kBlockWarps;
  for (std::size_t item =
           std::size_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
       item < args.range.count; item += step) {
    const Run run = RunOf(args.range, 1, item);
    WithBody<T, kWidth, kApart>(args, run, [&run](auto body) {
      for (unsigned at = 0; at < run.count; at += kRow) {
        body.template Load<false>(0, at, run.count - at);
        body.template Use<false>(0, at, run.count - at);
      }
    });
  }
}

template <typename T, int kWidth, bool kApart>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    ByBlock(ChunkRestoreArgs args, std::size_t slices, float*) {
  if (IsLeftAlone(args)) return;
  const std::size_t items = args.range.count * slices;
  for (std::size_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Run run = RunOf(args.range, slices, item);
    WithBody<T, kWidth, kApart>(
        args, run, [&run](auto body) { ForRows<kUnroll>(run.count, body); });
  }
}

template <typename T, int kWidth>
int Start(const ChunkRestoreArgs& args, void* stream) {
  if (args.residual == nullptr) {
    return LaunchRuns<&ByWarp<T, kWidth, false>, &ByBlock<T, kWidth, false>>(
        args, nullptr, stream);
  }
  return LaunchRuns<&ByWarp<T, kWidth, true>, &ByBlock<T, kWidth, true>>(
      args, nullptr, stream);
}

}  // namespace

int ChunkRestore(const ChunkRestoreArgs& args, void* stream) {
  if (!IsAllowed(args.range) || !IsGradientType(args.type)) return EINVAL;
  if (args.hidden != nullptr && args.residual == nullptr) return EINVAL;
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
