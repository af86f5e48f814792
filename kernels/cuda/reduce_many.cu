#include <algorithm>

#include "kernels/cpu/reduce_args.h"
#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"

// Bytes in flight per thread: 64, two packs of each of two sources. Elements of
// one byte take a register each, so there it is one pack of one source.
namespace gradientflow::kernels::cuda {
namespace {

template <typename T>
inline constexpr int kSourcesAtOnce = sizeof(T) == 1 ? 1 : 2;

// Rounds each v to `type`. The choice is outside of the loops, and the same for
// all threads.
template <int kN>
__device__ void Round(DType type, float (&v)[kN]) {
  if (type == DType::kFloat16) {
#pragma unroll
    for (int e = 0; e < kN; ++e) v[e] = ToFloat(FromFloat<Half>(v[e]));
  } else if (type == DType::kBFloat16) {
#pragma unroll
    for (int e = 0; e < kN; ++e) v[e] = ToFloat(FromFloat<BFloat>(v[e]));
  }
}
// For a type that does not convert to others.
template <typename T, int kN>
__device__ void Round(DType, T (&)[kN]) {}

// What ReduceManyArgs says of the finished sums: each is multiplied by `scale`,
// rounded to `type`, and multiplied by `last_scale`.
template <int kN>
__device__ void Settle(float scale, DType type, float last_scale,
                       float (&v)[kN]) {
#pragma unroll
  for (int e = 0; e < kN; ++e) v[e] = scale * v[e];
  Round(type, v);
#pragma unroll
  for (int e = 0; e < kN; ++e) v[e] = last_scale * v[e];
}
template <int kN>
__device__ void Settle(float scale, DType, float, double (&v)[kN]) {
#pragma unroll
  for (int e = 0; e < kN; ++e) v[e] = static_cast<double>(scale) * v[e];
}
template <typename T, int kN>
__device__ void Settle(float, DType, float, T (&)[kN]) {}

// The pointers travel with the launch, since the caller's arrays are in host
// memory.
template <typename S, typename D>
struct ReduceBody {
  using State = Watch;
  using C = Compute<D>;
  const void* srcs[kMaxParties];
  void* dsts[kMaxParties];
  int sources;
  int dests;
  int own;
  ReduceOp op;
  DType wire_type;   // float32: none.
  DType round_type;  // float32: none.
  float scale;
  float last_scale;
  std::uint32_t* nonfinite;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, Watch& watch) const {
    C sums[kPacks * kN] = {};
    if constexpr (kSame<S, D>) {
      AddSources<S, kN>(0, sources, i, sums);
    } else {
      AddSources<S, kN>(0, own < 0 ? sources : own, i, sums);
      if (own >= 0) {
        Add<D, 1, kN>(own, i, sums);
        AddSources<S, kN>(own + 1, sources, i, sums);
      }
    }
    Settle(scale, round_type, last_scale, sums);
    Pack<D, kN> out[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        out[u].at[e] = Narrow<D>(sums[u * kN + e]);
        watch.seen |= IsNonFinite(out[u].at[e]);
      }
    }
    for (int d = 0; d < dests; ++d) {
      D* dst = static_cast<D*>(dsts[d]) + i;
#pragma unroll
      for (int u = 0; u < kPacks; ++u) Store(dst + u * kStep<kN>, out[u]);
    }
  }

  template <typename T, int kN, int kElements>
  __device__ void AddSources(int begin, int end, std::size_t i,
                             C (&sums)[kElements]) const {
    int s = begin;
    for (; s + kSourcesAtOnce<T> <= end; s += kSourcesAtOnce<T>) {
      Add<T, kSourcesAtOnce<T>, kN>(s, i, sums);
    }
    if (s < end) Add<T, 1, kN>(s, i, sums);
  }

  // Combines sources [s, s + kSources) into sums, with all loads first; source
  // 0 initialises them.
  template <typename T, int kSources, int kN, int kElements>
  __device__ void Add(int s, std::size_t i, C (&sums)[kElements]) const {
    constexpr int kPacks = kElements / kN;
    Pack<T, kN> in[kSources][kPacks];
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      const T* src = static_cast<const T*>(srcs[s + k]) + i;
#pragma unroll
      for (int u = 0; u < kPacks; ++u) in[k][u] = Load<kN>(src + u * kStep<kN>);
    }
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      C values[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        values[e] = Widen(in[k][e / kN].at[e % kN]);
      }
      Round(wire_type, values);
      const auto value = [&](int e) -> C { return values[e]; };
      if (k == 0 && s == 0) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) sums[e] = value(e);
      } else {
        Combine(op, sums, value);
      }
    }
  }

  __device__ void Finish(const Watch& watch) const { Report(watch, nonfinite); }
};

template <typename S, typename D>
int Run(const ReduceManyArgs& args, void* stream) {
  ReduceBody<S, D> body = {};
  std::copy_n(args.srcs, args.sources, body.srcs);
  std::copy_n(args.dsts, args.dests, body.dsts);
  body.sources = args.sources;
  body.dests = args.dests;
  body.own = args.own;
  body.op = args.op;
  // Narrow() rounds to dst_type in any case.
  const bool narrowed =
      args.round_type == args.dst_type && args.last_scale == 1;
  body.round_type = narrowed ? DType::kFloat32 : args.round_type;
  body.wire_type = args.wire_type;
  body.scale = args.scale;
  body.last_scale = args.last_scale;
  body.nonfinite = args.nonfinite;
  constexpr int kUnroll = sizeof(D) == 1 ? 1 : 2;
  Heads<kPackOf<S, D>> heads;
  for (int s = 0; s < args.sources; ++s) {
    if (s == body.own) {
      heads.Add(static_cast<const D*>(args.srcs[s]));
    } else {
      heads.Add(static_cast<const S*>(args.srcs[s]));
    }
  }
  for (int d = 0; d < args.dests; ++d) {
    heads.Add(static_cast<const D*>(args.dsts[d]));
  }
  return LaunchSpan<kPackOf<S, D>, kUnroll>(body, heads, args.n, stream);
}

}  // namespace

int ReduceMany(const ReduceManyArgs& args, void* stream) {
  if (!IsAllowed(args)) return EINVAL;
  if (IsGradientType(args.dst_type)) {
    return WithGradientType(args.dst_type, [&](auto dst) {
      return WithGradientType(args.src_type, [&](auto src) {
        return Run<decltype(src), decltype(dst)>(args, stream);
      });
    });
  }
  return WithPlainType(args.dst_type, [&](auto t) {
    return Run<decltype(t), decltype(t)>(args, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
