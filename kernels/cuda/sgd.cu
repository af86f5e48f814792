#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"

// Bytes in flight per thread: 80 to 96, two packs of each of three arrays.
namespace gradientflow::kernels::cuda {
namespace {

constexpr int kUnroll = 2;

template <typename T>
struct SgdBody {
  using State = Nothing;
  float* weights;
  float* momentum_buf;
  const T* grads;
  float lr;
  float momentum;
  float weight_decay;
  float grad_scale;
  bool nesterov;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, Nothing&) const {
    Pack<float, kN> weight[kPacks];
    Pack<float, kN> moved[kPacks];
    Pack<T, kN> grad[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      weight[u] = Load<kN>(weights + i + u * kStep<kN>);
      moved[u] = Load<kN>(momentum_buf + i + u * kStep<kN>);
      grad[u] = Load<kN>(grads + i + u * kStep<kN>);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        Step(ToFloat(grad[u].at[e]), weight[u].at[e], moved[u].at[e]);
      }
      Store(weights + i + u * kStep<kN>, weight[u]);
      Store(momentum_buf + i + u * kStep<kN>, moved[u]);
    }
  }

  __device__ void Step(float grad, float& weight, float& moved) const {
    const float step = lr * (grad_scale * grad + weight_decay * weight);
    moved = momentum * moved + step;
    weight -= nesterov ? momentum * moved + step : moved;
  }

  __device__ void Finish(const Nothing&) const {}
};

template <typename T>
int Run(const SgdArgs& args, void* stream) {
  const SgdBody<T> body{
      args.weights,    args.momentum_buf, static_cast<const T*>(args.grads),
      args.lr,         args.momentum,     args.weight_decay,
      args.grad_scale, args.nesterov};
  Heads<kPackOf<float, T>> heads;
  heads.Add(body.weights);
  heads.Add(body.momentum_buf);
  heads.Add(body.grads);
  return LaunchSpan<kPackOf<float, T>, kUnroll>(body, heads, args.n, stream);
}

}  // namespace

int Sgd(const SgdArgs& args, void* stream) {
  return WithGradientType(
      args.type, [&](auto t) { return Run<decltype(t)>(args, stream); });
}

}  // namespace gradientflow::kernels::cuda
