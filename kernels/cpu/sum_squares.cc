#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sum_squares.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;

// The square of a float32 is exact in float64: fusing it with the addition
// changes no bit.
template <class T>
struct SumSquaresBody {
  const T* src;
  VD low[kSlots];
  VD high[kSlots];

  template <int kSlot, class Memory>
  HWY_INLINE void Step(std::size_t i, Memory memory) {
    const VF values = memory.Read(src + i);
    const hn::Half<DF> half;
    const VD a = hn::PromoteTo(DD(), hn::LowerHalf(half, values));
    const VD b = hn::PromoteTo(DD(), hn::UpperHalf(half, values));
    low[kSlot] = hn::MulAdd(a, a, low[kSlot]);
    high[kSlot] = hn::MulAdd(b, b, high[kSlot]);
  }
};

template <class T>
HWY_NOINLINE int RunSumSquares(const SumSquaresArgs& args) {
  SumSquaresBody<T> body;
  body.src = static_cast<const T*>(args.src);
  for (int s = 0; s < kSlots; ++s) {
    body.low[s] = hn::Zero(DD());
    body.high[s] = hn::Zero(DD());
  }
  ForEachVector(args.n, body);
  VD sum = hn::Zero(DD());
  for (int s = 0; s < kSlots; ++s) {
    sum = hn::Add(sum, hn::Add(body.low[s], body.high[s]));
  }
  *args.sum += hn::GetLane(hn::SumOfLanes(DD(), sum));
  return 0;
}

}  // namespace

int SumSquares(const SumSquaresArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return RunSumSquares<typename decltype(tag)::Type>(args);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradientflow::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET
