#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"

// Bytes in flight per thread: 64, four packs.
namespace gradientflow::kernels::cuda {
namespace {

template <typename T>
struct FindNonfiniteBody {
  using State = Watch;
  const T* src;
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
    }
  }

  __device__ void Finish(const Watch& watch) const { Report(watch, nonfinite); }
};

template <typename T>
int Run(const FindNonfiniteArgs& args, void* stream) {
  const FindNonfiniteBody<T> body{static_cast<const T*>(args.src),
                                  args.nonfinite};
  Heads<kPackOf<T>> heads;
  heads.Add(body.src);
  return LaunchPacks<kPackOf<T>, 4>(body, heads.head(), args.n, stream);
}

}  // namespace

int FindNonfinite(const FindNonfiniteArgs& args, void* stream) {
  return WithGradientType(
      args.type, [&](auto t) { return Run<decltype(t)>(args, stream); });
}

}  // namespace gradientflow::kernels::cuda
