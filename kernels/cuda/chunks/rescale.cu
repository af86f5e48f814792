#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/chunks/runs.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"

namespace gradientflow::kernels::cuda {
namespace {

constexpr int kUnroll = 4;
constexpr std::size_t kPerBlock = kBlockWarps * kRow * kUnroll;

template <typename T, int kWidth>
struct RescaleBody {
  T* values;
  float factor;
  RowBits<T, kWidth> rows[kUnroll];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    rows[u].template Load<kWhole>(values + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float scaled[kPerLane];
    T written[kPerLane];
    rows[u].Get(scaled);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) scaled[j] *= factor;
    Round(scaled, written);
    StoreRow<kWidth, kWhole, Reuse::kNone>(values + at, left, written);
  }
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    Rescale(T* values, std::size_t n, float factor) {
  const std::size_t step = gridDim.x * kPerBlock;
  for (std::size_t at = blockIdx.x * kPerBlock; at < n; at += step) {
    const std::size_t left = n - at;
    RescaleBody<T, kWidth> body = {values + at, factor, {}};
    ForRows<kUnroll>(static_cast<unsigned>(left < kPerBlock ? left : kPerBlock),
                     body);
  }
}

// The residual is in `values`, for all elements of the pool.
template <typename T>
int Start(T* values, const ChunkRescaleArgs& args, void* stream) {
  const ChunkRange& range = args.range;
  const std::size_t begin = range.first * range.chunk_elements;
  const std::size_t last = begin + (range.count - 1) * range.chunk_elements;
  const std::size_t left = range.elements - last;
  const std::size_t n = last - begin + std::min(left, range.chunk_elements);
  T* at = values + begin;
  const Shape shape = {GridOf((n + kPerBlock - 1) / kPerBlock), kBlockThreads};
  return AlignedFor<4>(at)
             ? Launch<&Rescale<T, 4>>(shape, stream, at, n, args.factor)
             : Launch<&Rescale<T, 1>>(shape, stream, at, n, args.factor);
}

}  // namespace

int ChunkRescale(const ChunkRescaleArgs& args, void* stream) {
  if (!IsAllowed(args.range)) return EINVAL;
  if (args.range.count == 0 || args.factor == 1) return 0;
  if (args.residual != nullptr) return Start(args.residual, args, stream);
  return WithGradientType(args.type, [&](auto grad) {
    return Start(static_cast<decltype(grad)*>(args.grads), args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
