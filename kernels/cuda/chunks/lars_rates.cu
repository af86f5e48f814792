#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/cuda/chunks/rows.cuh"
#include "kernels/cuda/chunks/runs.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/launch.cuh"

namespace gradientflow::kernels::cuda {
namespace {

// One block per tensor. All its threads fetch the sums of tiles, some at a
// time; then one thread adds up those of the weights in order, and another
// those of the gradients. That costs about 10 cycles per tile, since each
// addition waits for the one before.
constexpr unsigned kFetched = 4 * kBlockThreads;

struct RatesShared {
  double squares[2][kFetched];  // Weights', gradients'.
  double sums[2];
};

__device__ float RateOf(const LarsRatesArgs& args, double weight_sum,
                        double gradient_sum) {
  if (weight_sum == 0 || gradient_sum == 0) return args.lr;
  const double weight_norm = sqrt(weight_sum);
  const double factor =
      static_cast<double>(args.eta) * weight_norm /
      (static_cast<double>(args.grad_scale) * sqrt(gradient_sum) +
       static_cast<double>(args.weight_decay) * weight_norm +
       static_cast<double>(args.eps));
  return args.lr * static_cast<float>(factor);
}

// Leaves the sums over tiles [first, last) in shared->sums.
__device__ void AddTiles(const LarsRatesArgs& args, std::uint64_t first,
                         std::uint64_t last, RatesShared* shared) {
  const unsigned part = threadIdx.x;  // Threads 0 and 1 add.
  double sum = 0;
  for (std::uint64_t at = first; at < last; at += kFetched) {
    const std::uint64_t left = last - at;
    const auto count = static_cast<unsigned>(left < kFetched ? left : kFetched);
#pragma unroll
    for (unsigned u = 0; u < kFetched / kBlockThreads; ++u) {
      const unsigned i = u * kBlockThreads + threadIdx.x;
      if (i < count) {
        shared->squares[0][i] = args.weight_squares[at + i];
        shared->squares[1][i] = args.gradient_squares[at + i];
      }
    }
    __syncthreads();
    if (part < 2) {
#pragma unroll 8
      for (unsigned i = 0; i < count; ++i) sum += shared->squares[part][i];
    }
    __syncthreads();
  }
  if (part < 2) shared->sums[part] = sum;
  __syncthreads();
}

__global__ void __launch_bounds__(kBlockThreads) Rates(LarsRatesArgs args) {
  auto* shared = Shared<RatesShared>();
  for (std::size_t t = blockIdx.x; t < args.tensors; t += gridDim.x) {
    if (args.skip != nullptr && args.skip[t] != 0) {
      if (threadIdx.x == 0) args.rates[t] = args.lr;
      continue;
    }
    AddTiles(args, args.first_tile[t], args.first_tile[t + 1], shared);
    if (threadIdx.x == 0) {
      args.rates[t] = RateOf(args, shared->sums[0], shared->sums[1]);
    }
    __syncthreads();  // Separates the sums of consecutive tensors.
  }
}

}  // namespace

int LarsRates(const LarsRatesArgs& args, void* stream) {
  if (args.tensors == 0) return 0;
  const Shape shape = {GridOf(args.tensors), kBlockThreads,
                       sizeof(RatesShared)};
  return Launch<&Rates>(shape, stream, args);
}

}  // namespace gradientflow::kernels::cuda
