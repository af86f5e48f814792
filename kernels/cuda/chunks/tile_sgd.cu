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

// 80 or 96 bytes in flight per thread.
constexpr int kUnroll = 1;

template <typename T, int kWidth>
struct SgdBody {
  float* weights;
  float* momentum_buf;
  const T* grads;
  float rate;
  float momentum;
  float weight_decay;
  float grad_scale;
  bool nesterov;
  RowBits<float, kWidth> weight_row;
  RowBits<float, kWidth> momentum_row;
  RowBits<T, kWidth> grad_row;

  __device__ SgdBody(const TileSgdArgs& args, const Tile& tile)
      : weights(args.weights[tile.tensor] + tile.tensor_begin),
        momentum_buf(args.momentum_buf + tile.pool_begin),
        grads(static_cast<const T*>(args.grads) + tile.pool_begin),
        rate(args.rates != nullptr ? args.rates[tile.tensor] : args.lr),
        momentum(args.momentum),
        weight_decay(args.weight_decay),
        grad_scale(args.grad_scale),
        nesterov(args.nesterov) {}

  __device__ bool Aligned() const {
    return AlignedFor<4>(weights) && AlignedFor<4>(momentum_buf) &&
           AlignedFor<4>(grads);
  }

  template <bool kWhole>
  __device__ void Load(int, unsigned at, unsigned left) {
    weight_row.template Load<kWhole>(weights + at, left);
    momentum_row.template Load<kWhole>(momentum_buf + at, left);
    grad_row.template Load<kWhole>(grads + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int, unsigned at, unsigned left) {
    float weight[kPerLane];
    float moved[kPerLane];
    float grad[kPerLane];
    weight_row.Get(weight);
    momentum_row.Get(moved);
    grad_row.Get(grad);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float step =
          rate * (grad_scale * grad[j] + weight_decay * weight[j]);
      moved[j] = momentum * moved[j] + step;
      weight[j] -= nesterov ? momentum * moved[j] + step : moved[j];
    }
    StoreRow<kWidth, kWhole, Reuse::kNone>(momentum_buf + at, left, moved);
    StoreRow<kWidth, kWhole, Reuse::kSoon>(weights + at, left, weight);
  }
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kResidentBlocks)
    UpdateTiles(TileSgdArgs args) {
  if (args.skip != nullptr && *args.skip != 0) return;
  for (std::size_t t = blockIdx.x; t < args.count; t += gridDim.x) {
    const Tile tile = args.tiles[t];
    if (args.weights[tile.tensor] == nullptr) continue;
    if (args.slots != nullptr && args.slots[tile.chunk] == kNotSent) continue;
    SgdBody<T, 4> vectors(args, tile);
    if (vectors.Aligned()) {
      ForRows<kUnroll>(tile.count, vectors);
    } else {
      SgdBody<T, 1> elements(args, tile);
      ForRows<kUnroll>(tile.count, elements);
    }
  }
}

}  // namespace

int TileSgd(const TileSgdArgs& args, void* stream) {
  if (!IsGradientType(args.type)) return EINVAL;
  if (args.count == 0) return 0;
  const Shape shape = {GridOf(args.count), kBlockThreads};
  return WithGradientType(args.type, [&](auto grad) {
    return Launch<&UpdateTiles<decltype(grad)>>(shape, stream, args);
  });
}

}  // namespace gradientflow::kernels::cuda
