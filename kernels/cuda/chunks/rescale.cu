#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/chunks/runs.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"

namespace gradientflow::kernels::cuda {
namespace {

constexpr int kUnroll = 4;
constexpr std::size_t kPerBlock = kBlockWarps * kRow * kUnroll;

template <int kWidth>
struct RescaleBody {
  float* residual;
  float factor;
  RowBits<float, kWidth> rows[kUnroll];

  template <bool kWhole>
  __device__ void Load(int u, unsigned at, unsigned left) {
    rows[u].template Load<kWhole>(residual + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float scaled[kPerLane];
    rows[u].Get(scaled);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) scaled[j] *= factor;
    StoreRow<kWidth, kWhole, Reuse::kNone>(residual + at, left, scaled);
  }
};

template <int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    Rescale(float* residual, std::size_t n, float factor) {
  const std::size_t step = gridDim.x * kPerBlock;
  for (std::size_t at = blockIdx.x * kPerBlock; at < n; at += step) {
    const std::size_t left = n - at;
    RescaleBody<kWidth> body = {residual + at, factor, {}};
    ForRows<kUnroll>(static_cast<unsigned>(left < kPerBlock ? left : kPerBlock),
                     body);
  }
}

}  // namespace

int ChunkRescale(const ChunkRescaleArgs& args, void* stream) {
  const ChunkRange& range = args.range;
  if (!IsAllowed(range)) return EINVAL;
  if (range.count == 0 || args.factor == 1) return 0;
  const std::size_t begin = range.first * range.chunk_elements;
  const std::size_t last = begin + (range.count - 1) * range.chunk_elements;
  const std::size_t left = range.elements - last;
  const std::size_t n = last - begin + std::min(left, range.chunk_elements);
  float* residual = args.residual + begin;
  const Shape shape = {GridOf((n + kPerBlock - 1) / kPerBlock), kBlockThreads};
  return AlignedFor<4>(residual)
             ? Launch<&Rescale<4>>(shape, stream, residual, n, args.factor)
             : Launch<&Rescale<1>>(shape, stream, residual, n, args.factor);
}

}  // namespace gradientflow::kernels::cuda
