#include "kernels/cpu/reduce_args.h"
#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"

// Bytes in flight per thread: 64, two packs of each operand, or 48 where one
// operand is narrower. Elements of one byte take a register each, so there it
// is one pack of each.
namespace gradientflow::kernels::cuda {
namespace {

template <typename D>
inline constexpr int kUnroll = sizeof(D) == 1 ? 1 : 2;

// `v` times `scale`, in T; integers have no scale.
__device__ inline float Scaled(float scale, float v) { return scale * v; }
__device__ inline double Scaled(float scale, double v) {
  return static_cast<double>(scale) * v;
}
template <typename T>
__device__ T Scaled(float, T v) {
  return v;
}

template <typename D, typename S>
struct AccumulateBody {
  using State = Watch;
  D* dst;
  const S* src;
  ReduceOp op;
  float dst_scale;
  float out_scale;
  std::uint32_t* nonfinite;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, Watch& watch) const {
    Pack<D, kN> to[kPacks];
    Pack<S, kN> from[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      to[u] = Load<kN>(dst + i + u * kStep<kN>);
      from[u] = Load<kN>(src + i + u * kStep<kN>);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      Emit(to[u], from[u], i + u * kStep<kN>, watch);
    }
  }

  template <int kN>
  __device__ void Emit(const Pack<D, kN>& to, const Pack<S, kN>& from,
                       std::size_t i, Watch& watch) const {
    Compute<D> a[kN];
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      a[e] = Scaled(dst_scale, Widen(to.at[e]));
    }
    Combine(op, a, [&](int e) { return Widen(from.at[e]); });
    Pack<D, kN> out;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      out.at[e] = Narrow<D>(Scaled(out_scale, a[e]));
      watch.seen |= IsNonFinite(out.at[e]);
    }
    Store(dst + i, out);
  }

  __device__ void Finish(const Watch& watch) const { Report(watch, nonfinite); }
};

template <typename D, typename S>
int Run(const AccumulateArgs& args, void* stream) {
  const AccumulateBody<D, S> body{static_cast<D*>(args.dst),
                                  static_cast<const S*>(args.src),
                                  args.op,
                                  args.dst_scale,
                                  args.out_scale,
                                  args.nonfinite};
  Heads<kPackOf<D, S>> heads;
  heads.Add(body.dst);
  heads.Add(body.src);
  return LaunchSpan<kPackOf<D, S>, kUnroll<D>>(body, heads, args.n, stream);
}

}  // namespace

int Accumulate(const AccumulateArgs& args, void* stream) {
  if (!IsAllowed(args)) return EINVAL;
  if (IsGradientType(args.dst_type)) {
    return WithGradientType(args.dst_type, [&](auto dst) {
      return WithGradientType(args.src_type, [&](auto src) {
        return Run<decltype(dst), decltype(src)>(args, stream);
      });
    });
  }
  return WithPlainType(args.dst_type, [&](auto t) {
    return Run<decltype(t), decltype(t)>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
