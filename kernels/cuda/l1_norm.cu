#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"
#include "kernels/cuda/sum.cuh"

// Bytes in flight per thread: a tile of 8192 elements makes 32 elements each,
// 64 or 128 bytes.
namespace gradientflow::kernels::cuda {
namespace {

template <typename T, bool kAligned>
struct L1NormBody {
  using Partial = float;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kUnroll = 32 / kPack;
  const T* src;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, float& sum) const {
    Pack<T, kN> in[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      in[u] = Load<kN, kAligned>(src + i + u * kStep<kN>);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int e = 0; e < kN; ++e) sum += Abs(ToFloat(in[u].at[e]));
    }
  }
};

}  // namespace

int L1Norm(const L1NormArgs& args, void* stream) {
  return WithGradientType(args.type, [&](auto t) {
    return LaunchSumOf<L1NormBody>(static_cast<const decltype(t)*>(args.src),
                                   args.n, args.scale, args.norm, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
