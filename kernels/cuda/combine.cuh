#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/types.h"

// The reductions on single elements, as cpu/combine.h has them.
namespace gradientflow::kernels::cuda {

constexpr bool IsReduceOp(ReduceOp op) {
  return static_cast<int>(op) < kReduceOps;
}

// Integers are added and multiplied as unsigned ones, of no less than 32 bits,
// because they wrap.
template <typename T>
struct WrappingOf {
  using Type = T;
};
template <>
struct WrappingOf<std::int8_t> {
  using Type = std::uint32_t;
};
template <>
struct WrappingOf<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct WrappingOf<std::int64_t> {
  using Type = std::uint64_t;
};

// a[e] = a[e] op b(e). Of a minimum or maximum with a NaN, the NaN; of +0 and
// -0, b. The choice is outside of the loop, and the same for all threads; b is
// asked inside, so that no register holds it for long.
template <typename T, int kN, class B>
__device__ void Combine(ReduceOp op, T (&a)[kN], B b) {
  using Wrapping = typename WrappingOf<T>::Type;
  switch (op) {
    case ReduceOp::kSum:
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        a[e] = static_cast<T>(static_cast<Wrapping>(a[e]) +
                              static_cast<Wrapping>(b(e)));
      }
      break;
    case ReduceOp::kProduct:
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        a[e] = static_cast<T>(static_cast<Wrapping>(a[e]) *
                              static_cast<Wrapping>(b(e)));
      }
      break;
    case ReduceOp::kMin:
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const T other = b(e);
        a[e] = a[e] != a[e] || a[e] < other ? a[e] : other;
      }
      break;
    case ReduceOp::kMax:
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const T other = b(e);
        a[e] = a[e] != a[e] || a[e] > other ? a[e] : other;
      }
      break;
  }
}

}  // namespace gradientflow::kernels::cuda
