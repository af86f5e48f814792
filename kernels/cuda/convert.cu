#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"

// Bytes in flight per thread: 64, four packs of the source. If the source is
// the narrower type its packs have 8 bytes, and there are eight.
namespace gradientflow::kernels::cuda {
namespace {

template <typename S, typename D>
struct ConvertBody {
  using State = Watch;
  const S* src;
  D* dst;
  S* settled;
  float scale;
  float settled_scale;
  std::uint32_t* nonfinite;

  template <int kN, int kUnroll>
  __device__ void Run(std::size_t i, Watch& watch) const {
    Pack<S, kN> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) in[u] = Load<kN>(src + i + u * kStep<kN>);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) Emit(in[u], i + u * kStep<kN>, watch);
  }

  template <int kN>
  __device__ void Emit(const Pack<S, kN>& in, std::size_t i,
                       Watch& watch) const {
    Pack<D, kN> out;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      out.at[e] = FromFloat<D>(scale * ToFloat(in.at[e]));
      watch.seen |= IsNonFinite(out.at[e]);
    }
    Store(dst + i, out);
    if (settled == nullptr) return;
    Pack<S, kN> back;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      back.at[e] = FromFloat<S>(settled_scale * ToFloat(out.at[e]));
      watch.seen |= IsNonFinite(back.at[e]);
    }
    Store(settled + i, back);
  }

  __device__ void Finish(const Watch& watch) const { Report(watch, nonfinite); }
};

// Moves the bits unchanged, even those of signalling NaNs.
template <typename T>
struct CopyBody {
  using State = Watch;
  const T* src;
  T* dst;
  T* settled;
  std::uint32_t* nonfinite;

  template <int kN, int kUnroll>
  __device__ void Run(std::size_t i, Watch& watch) const {
    Pack<T, kN> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) in[u] = Load<kN>(src + i + u * kStep<kN>);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int e = 0; e < kN; ++e) watch.seen |= IsNonFinite(in[u].at[e]);
      Store(dst + i + u * kStep<kN>, in[u]);
      if (settled != nullptr) Store(settled + i + u * kStep<kN>, in[u]);
    }
  }

  __device__ void Finish(const Watch& watch) const { Report(watch, nonfinite); }
};

template <int kUnroll, typename S, typename D, class Body>
int LaunchBody(const Body& body, const ConvertArgs& args, void* stream) {
  Heads<kPackOf<S, D>> heads;
  heads.Add(body.src);
  heads.Add(body.dst);
  if (body.settled != nullptr) heads.Add(body.settled);
  return LaunchSpan<kPackOf<S, D>, kUnroll>(body, heads, args.n, stream);
}

template <typename T>
int Copy(const ConvertArgs& args, void* stream) {
  const CopyBody<T> body{static_cast<const T*>(args.src),
                         static_cast<T*>(args.dst),
                         static_cast<T*>(args.settled), args.nonfinite};
  return LaunchBody<4, T, T>(body, args, stream);
}

template <typename S, typename D>
int Cast(const ConvertArgs& args, void* stream) {
  const ConvertBody<S, D> body{static_cast<const S*>(args.src),
                               static_cast<D*>(args.dst),
                               static_cast<S*>(args.settled),
                               args.scale,
                               args.settled_scale,
                               args.nonfinite};
  constexpr int kUnroll = sizeof(S) < sizeof(D) ? 8 : 4;
  return LaunchBody<kUnroll, S, D>(body, args, stream);
}

}  // namespace

int Convert(const ConvertArgs& args, void* stream) {
  if (IsCopy(args)) {
    const auto copy = [&](auto t) { return Copy<decltype(t)>(args, stream); };
    return IsGradientType(args.src_type) ? WithGradientType(args.src_type, copy)
                                         : WithPlainType(args.src_type, copy);
  }
  return WithGradientType(args.src_type, [&](auto src) {
    return WithGradientType(args.dst_type, [&](auto dst) {
      return Cast<decltype(src), decltype(dst)>(args, stream);
    });
  });
}

}  // namespace gradientflow::kernels::cuda
