#include <cstddef>
#include <cstring>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sum_squares.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/square_sums.h"
#include "kernels/cpu/vec-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace gradientflow::kernels::HWY_NAMESPACE {
namespace {

using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
inline constexpr std::size_t kDoubles = HWY_LANES(double);

// kLanes neighbours among the lanes of a block.
struct Lanes {
  VD low, high;
};

HWY_INLINE Lanes operator+(Lanes a, Lanes b) {
  return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
}

HWY_INLINE Lanes Fold(const Lanes (&parts)[2]) { return parts[0] + parts[1]; }
HWY_INLINE Lanes Fold(const Lanes (&parts)[4]) {
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// So few lanes that all fit into registers and memory is read in order.
inline constexpr std::size_t kParts = kSquareLanes / kLanes;
static_assert(kSlots % kParts == 0);

// The square of a float32 is exact in float64, so fusing it with the addition
// changes no bit.
template <class T>
struct SquaresBody {
  const T* src;
  Lanes parts[kParts];

  template <int kSlot, class Memory>
  HWY_INLINE void Apply(std::size_t i, Memory memory) {
    Lanes& part = parts[kSlot % kParts];
    const VF values = memory.Read(src + i);
    const hn::Half<DF> half;
    const VD a = hn::PromoteTo(DD(), hn::LowerHalf(half, values));
    const VD b = hn::PromoteTo(DD(), hn::UpperHalf(half, values));
    part.low = hn::MulAdd(a, a, part.low);
    part.high = hn::MulAdd(b, b, part.high);
  }
};

template <class T>
HWY_INLINE double SumOfBlock(const T* src) {
  SquaresBody<T> body;
  body.src = src;
  for (Lanes& part : body.parts) part = {hn::Zero(DD()), hn::Zero(DD())};
  ForEachVector(kSquareBlock, body);
  const Lanes sum = Fold(body.parts);
  alignas(64) double lanes[kDoubles];
  hn::Store(hn::Add(sum.low, sum.high), DD(), lanes);
  return FoldLanes(lanes);
}

template <class T>
HWY_NOINLINE int RunSumSquares(const SumSquaresArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  SquareTotals totals;
  std::size_t left = args.n;
  for (; left >= kSquareBlock; left -= kSquareBlock, src += kSquareBlock) {
    totals.Add(SumOfBlock(src));
  }
  if (left > 0) {
    alignas(64) T last[kSquareBlock] = {};  // Zeros change no sum.
    std::memcpy(last, src, left * sizeof(T));
    totals.Add(SumOfBlock(last));
  }
  *args.sum += totals.Fold();
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
