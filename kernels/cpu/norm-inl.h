// Sums of magnitudes in float32. Compiled once per instruction set.
#if defined(GRADIENTFLOW_KERNELS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADIENTFLOW_KERNELS_NORM_INL_H_
#undef GRADIENTFLOW_KERNELS_NORM_INL_H_
#else
#define GRADIENTFLOW_KERNELS_NORM_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {

// Lanes and slots are summed separately, and are added to a total after each
// piece. No partial sum has more than kPieceVectors / kSlots terms, so the
// error grows with the number of pieces and not with the number of elements.
inline constexpr std::size_t kNormPiece = 512 * kLanes;

struct NormSlots {
  VF sums[kSlots];

  HWY_INLINE NormSlots()
      : sums{hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF())} {}

  template <int kSlot>
  HWY_INLINE void Add(VF v) {
    sums[kSlot] = hn::Add(sums[kSlot], hn::Abs(v));
  }

  HWY_INLINE VF Total() const {
    return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  }
};

// Runs body over [0, n) in pieces, and returns the sum that the body leaves in
// body.norm. Body has Advance(elements), which advances its pointers.
template <class Body>
HWY_INLINE float SumOfPieces(std::size_t n, Body& body) {
  VF total = hn::Zero(DF());
  while (n > 0) {
    const std::size_t count = HWY_MIN(n, kNormPiece);
    body.norm = NormSlots();
    ForEachVector(count, body);
    total = hn::Add(total, body.norm.Total());
    body.Advance(count);
    n -= count;
  }
  return SumOfLanes(total);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
