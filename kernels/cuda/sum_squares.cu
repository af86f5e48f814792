#include "kernels/cuda/element.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/span.cuh"
#include "kernels/cuda/sum.cuh"

// In flight per thread: as l1_norm.cu. The square of a float32 is exact in
// float64.
namespace gradientflow::kernels::cuda {
namespace {

template <typename T, bool kAligned>
struct SumSquaresBody {
  using Partial = double;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kUnroll = 32 / kPack;
  const T* src;

  template <int kN, int kPacks>
  __device__ void Run(std::size_t i, double& sum) const {
    Pack<T, kN> in[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      in[u] = Load<kN, kAligned>(src + i + u * kStep<kN>);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const double value = ToFloat(in[u].at[e]);
        sum += value * value;
      }
    }
  }
};

}  // namespace

int SumSquares(const SumSquaresArgs& args, void* stream) {
  return WithGradientType(args.type, [&](auto t) {
    return LaunchSumOf<SumSquaresBody>(
        static_cast<const decltype(t)*>(args.src), args.n, 1, args.sum, stream);
  });
}

}  // namespace gradientflow::kernels::cuda
