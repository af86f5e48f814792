#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"
#include "kernels/cuda/sum.cuh"

// Bytes in flight per thread: 96 or 128, four packs of gradients and of
// residuals.
namespace gradientflow::kernels::cuda {
namespace {

template <typename T, bool kAligned>
struct ResidualBody {
  using State = float;
  using Partial = float;
  static constexpr int kPack = kPackOf<float, T>;
  static constexpr int kUnroll = 4;
  T* grads;
  float* residual;
  float keep_factor;
  bool send;
  bool zero_kept;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, float& norm) const {
    Pack<T, kN> grad[kPacks];
    Pack<float, kN> rest[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      grad[u] = Load<kN, kAligned>(grads + i + u * kStep<kN>);
      rest[u] = Load<kN, kAligned>(residual + i + u * kStep<kN>);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      Emit(grad[u], rest[u], i + u * kStep<kN>, norm);
    }
  }

  template <int kN>
  __device__ void Emit(Pack<T, kN> grad, Pack<float, kN> rest, std::size_t i,
                       float& norm) const {
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const float sum = ToFloat(grad.at[e]) + rest.at[e];
      norm += Abs(sum);
      grad.at[e] = send ? FromFloat<T>(sum) : T{};
      rest.at[e] = send ? Left(sum, ToFloat(grad.at[e])) : keep_factor * sum;
    }
    Store<kAligned>(residual + i, rest);
    if (send || zero_kept) Store<kAligned>(grads + i, grad);
  }

  __device__ void Finish(float) const {}
};

// The order of a norm fixes which thread has which element, so there is no head
// that would align the pointers.
template <typename T>
int RunWithNorm(const ResidualArgs& args, bool aligned, void* stream) {
  T* grads = static_cast<T*>(args.grads);
  if (aligned) {
    const ResidualBody<T, true> body{grads, args.residual, args.keep_factor,
                                     args.send, args.zero_kept};
    return LaunchSum(body, args.n, 1, args.norm, stream);
  }
  const ResidualBody<T, false> body{grads, args.residual, args.keep_factor,
                                    args.send, args.zero_kept};
  return LaunchSum(body, args.n, 1, args.norm, stream);
}

template <typename T>
int Run(const ResidualArgs& args, void* stream) {
  using Body = ResidualBody<T, true>;
  const Body body{static_cast<T*>(args.grads), args.residual, args.keep_factor,
                  args.send, args.zero_kept};
  Heads<Body::kPack> heads;
  heads.Add(body.grads);
  heads.Add(body.residual);
  if (args.norm != nullptr) {
    return RunWithNorm<T>(args, heads.aligned(), stream);
  }
  return LaunchSpan<Body::kPack, Body::kUnroll>(body, heads, args.n, stream);
}

}  // namespace

int Residual(const ResidualArgs& args, void* stream) {
  return WithGradientType(
      args.type, [&](auto t) { return Run<decltype(t)>(args, stream); });
}

}  // namespace gradientflow::kernels::cuda
