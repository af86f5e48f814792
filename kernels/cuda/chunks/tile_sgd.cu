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

// 160 or 192 bytes in flight per thread, of 512 threads: their registers would
// not fit more. On the host's shim a launch has no bounds.
constexpr int kUnroll = 2;
[[maybe_unused]] constexpr int kSgdResidentBlocks = 2;

// A line of the cache, in elements of the momentum.
constexpr unsigned kLine = 128 / sizeof(float);

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
  RowBits<float, kWidth> weight_row[kUnroll];
  RowBits<float, kWidth> momentum_row[kUnroll];
  RowBits<T, kWidth> grad_row[kUnroll];

  // The body begins at the tile's element `first`.
  __device__ SgdBody(const TileSgdArgs& args, const Tile& tile, unsigned first)
      : weights(args.weights[tile.tensor] + tile.tensor_begin + first),
        momentum_buf(args.momentum_buf + tile.pool_begin + first),
        grads(static_cast<const T*>(args.grads) + tile.pool_begin + first),
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
  __device__ void Load(int u, unsigned at, unsigned left) {
    weight_row[u].template Load<kWhole>(weights + at, left);
    momentum_row[u].template Load<kWhole>(momentum_buf + at, left);
    grad_row[u].template Load<kWhole>(grads + at, left);
  }

  template <bool kWhole>
  __device__ void Use(int u, unsigned at, unsigned left) {
    float weight[kPerLane];
    float moved[kPerLane];
    float grad[kPerLane];
    weight_row[u].Get(weight);
    momentum_row[u].Get(moved);
    grad_row[u].Get(grad);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) Step(weight[j], moved[j], grad[j]);
    StoreRow<kWidth, kWhole, Reuse::kNone>(momentum_buf + at, left, moved);
    StoreRow<kWidth, kWhole, Reuse::kSoon>(weights + at, left, weight);
  }

  __device__ void Step(float& weight, float& moved, float grad) const {
    const float step = rate * (grad_scale * grad + weight_decay * weight);
    moved = momentum * moved + step;
    weight -= nesterov ? momentum * moved + step : moved;
  }

  // Updates one element, by its index from where the body begins, which may be
  // negative.
  __device__ void Update(int at) {
    float weight = weights[at];
    float moved = momentum_buf[at];
    Step(weight, moved, ToFloat(grads[at]));
    momentum_buf[at] = moved;
    weights[at] = weight;
  }

  // Updates [-head, n): whole rows from 0 on, and the rest element by element.
  // All threads of the block call it.
  __device__ void Run(unsigned head, unsigned n) {
    const unsigned in_rows = n / kRow * kRow;
    ForRows<kUnroll>(in_rows, *this);
    const unsigned edge = head + (n - in_rows);
    for (unsigned e = threadIdx.x; e < edge; e += kBlockThreads) {
      Update(static_cast<int>(e < head ? e : e + in_rows) -
             static_cast<int>(head));
    }
  }
};

// Returns how many elements come before the first line of the momentum. A
// tensor may begin anywhere in the pool. If rows began there, two accesses
// would share each line, which costs an eighth of the speed on an H100.
__device__ inline unsigned HeadOf(const float* momentum_buf, unsigned count) {
  const auto element =
      reinterpret_cast<std::uintptr_t>(momentum_buf) / sizeof(float);
  const auto head = static_cast<unsigned>(kLine - element % kLine) % kLine;
  return head < count ? head : count;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, kSgdResidentBlocks)
    UpdateTiles(TileSgdArgs args) {
  if (args.skip != nullptr && *args.skip != 0) return;
  for (std::size_t t = blockIdx.x; t < args.count; t += gridDim.x) {
    const Tile tile = args.tiles[t];
    if (args.weights[tile.tensor] == nullptr) continue;
    if (args.slots != nullptr && args.slots[tile.chunk] == kNotSent) continue;
    const unsigned head =
        HeadOf(args.momentum_buf + tile.pool_begin, tile.count);
    SgdBody<T, 4> vectors(args, tile, head);
    if (vectors.Aligned()) {
      vectors.Run(head, tile.count - head);
    } else {
      SgdBody<T, 1> elements(args, tile, head);
      elements.Run(head, tile.count - head);
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
