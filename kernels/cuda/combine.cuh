#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/types.h"

// The reductions on single elements, like those of cpu/combine.h.
namespace gradientflow::kernels::cuda {

// Integers wrap, so they are combined as unsigned values of at least 32 bits.
template <typename T>
struct WrappingOf {
  using Type = T;
};
template <>
struct WrappingOf<std::int8_t> {
  using Type = std::uint32_t;
};
template <>
struct WrappingOf<std::uint8_t> {
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

// a[e] = f(a[e], b(e)).
template <typename T, int kN, class B, class F>
__device__ void CombineEach(T (&a)[kN], B b, F f) {
#pragma unroll
  for (int e = 0; e < kN; ++e) a[e] = static_cast<T>(f(a[e], b(e)));
}

// a[e] = a[e] op b(e). A minimum or maximum is NaN if a or b is, and b if they
// are +0 and -0. The choice of `op` is outside of the loop and the same for all
// threads; b is evaluated inside, so that no register holds it for long.
template <typename T, int kN, class B>
__device__ void Combine(ReduceOp op, T (&a)[kN], B b) {
  using W = typename WrappingOf<T>::Type;
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return CombineEach(a, b, [](W x, W y) { return x & y; });
      case ReduceOp::kBitOr:
        return CombineEach(a, b, [](W x, W y) { return x | y; });
      case ReduceOp::kBitXor:
        return CombineEach(a, b, [](W x, W y) { return x ^ y; });
      default:
        break;
    }
  }
  switch (op) {
    case ReduceOp::kProduct:
      return CombineEach(a, b, [](W x, W y) { return x * y; });
    case ReduceOp::kMin:
      return CombineEach(a, b,
                         [](T x, T y) { return x != x || x < y ? x : y; });
    case ReduceOp::kMax:
      return CombineEach(a, b,
                         [](T x, T y) { return x != x || x > y ? x : y; });
    default:
      return CombineEach(a, b, [](W x, W y) { return x + y; });
  }
}

}  // namespace gradientflow::kernels::cuda
