// The reductions on vectors. They give the same bits as those on single
// elements in cpu/combine.h. Compiled once per instruction set.
#if defined(GRADIENTFLOW_KERNELS_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADIENTFLOW_KERNELS_COMBINE_INL_H_
#undef GRADIENTFLOW_KERNELS_COMBINE_INL_H_
#else
#define GRADIENTFLOW_KERNELS_COMBINE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/combine.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {

// x86's minimum and maximum return the second operand if either is a NaN, so
// only a NaN in the first one needs care.
template <ReduceOp op>
HWY_INLINE VF CombineVectors(VF a, VF b) {
  if constexpr (op == ReduceOp::kSum) {
    return hn::Add(a, b);
  } else if constexpr (op == ReduceOp::kProduct) {
    return hn::Mul(a, b);
  } else if constexpr (op == ReduceOp::kMin) {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::Min(a, b));
  } else {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, b));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
