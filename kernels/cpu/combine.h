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

// f(OpTag<op>()); kBadArgs for a value that is no ReduceOp.
template <class F>
int VisitOp(ReduceOp op, F f) {
  switch (op) {
    case ReduceOp::kSum:
      return f(OpTag<ReduceOp::kSum>());
    case ReduceOp::kMin:
      return f(OpTag<ReduceOp::kMin>());
    case ReduceOp::kMax:
      return f(OpTag<ReduceOp::kMax>());
    case ReduceOp::kProduct:
      return f(OpTag<ReduceOp::kProduct>());
  }
  return kBadArgs;
}

// a op b. Integers wrap: they are added and multiplied as unsigned values.
// Of a minimum or maximum with a NaN, the NaN; of +0 and -0, b.
template <ReduceOp op, class T>
T Combine(T a, T b) {
  if constexpr (op == ReduceOp::kMin) {
    if (a != a) return a;
    return a < b ? a : b;
  } else if constexpr (op == ReduceOp::kMax) {
    if (a != a) return a;
    return a > b ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned types below int would be promoted to a signed int.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    const Wide x = static_cast<Wide>(a);
    const Wide y = static_cast<Wide>(b);
    return static_cast<T>(op == ReduceOp::kSum ? x + y : x * y);
  } else {
    return op == ReduceOp::kSum ? a + b : a * b;
  }
}

}  // namespace gradientflow::kernels
