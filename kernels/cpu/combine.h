#pragma once

#include <type_traits>

#include "kernels/cpu/element.h"
#include "kernels/types.h"

// The reductions on single elements.
namespace gradientflow::kernels {

template <ReduceOp op>
struct OpTag {
  static constexpr ReduceOp kOp = op;
};

// Calls f(OpTag<op>()) for an operation on elements of type T; kBadArgs
// otherwise.
template <class T, class F>
int VisitOp(ReduceOp op, F f) {
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return f(OpTag<ReduceOp::kBitAnd>());
      case ReduceOp::kBitOr:
        return f(OpTag<ReduceOp::kBitOr>());
      case ReduceOp::kBitXor:
        return f(OpTag<ReduceOp::kBitXor>());
      default:
        break;
    }
  }
  switch (op) {
    case ReduceOp::kSum:
      return f(OpTag<ReduceOp::kSum>());
    case ReduceOp::kMin:
      return f(OpTag<ReduceOp::kMin>());
    case ReduceOp::kMax:
      return f(OpTag<ReduceOp::kMax>());
    case ReduceOp::kProduct:
      return f(OpTag<ReduceOp::kProduct>());
    default:
      return kBadArgs;
  }
}

// a op b, for any op but minimum and maximum.
template <ReduceOp op, class T>
constexpr T CombineUnsigned(T a, T b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
    default:
      return a + b;
  }
}

// a op b. Integers wrap, since they are combined as unsigned values. A minimum
// or maximum is NaN if a or b is, and b if they are +0 and -0.
template <ReduceOp op, class T>
T Combine(T a, T b) {
  if constexpr (op == ReduceOp::kMin) {
    if (a != a) return a;
    return a < b ? a : b;
  } else if constexpr (op == ReduceOp::kMax) {
    if (a != a) return a;
    return a > b ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned types narrower than int would be promoted to a signed int.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    return static_cast<T>(
        CombineUnsigned<op>(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return op == ReduceOp::kSum ? a + b : a * b;
  }
}

}  // namespace gradientflow::kernels
