#include <algorithm>
#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/square_sums.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
double SumOfBlock(const T* src, std::size_t n) {
  double lanes[kSquareLanes] = {};
  for (std::size_t i = 0; i < n; ++i) {
    const double value = ToFloat(src[i]);
    lanes[i % kSquareLanes] += value * value;
  }
  return FoldLanes(lanes);
}

template <class T>
int Run(const SumSquaresArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  SquareTotals totals;
  for (std::size_t at = 0; at < args.n; at += kSquareBlock) {
    totals.Add(SumOfBlock(src + at, std::min(kSquareBlock, args.n - at)));
  }
  *args.sum += totals.Fold();
  return 0;
}

}  // namespace

int SumSquares(const SumSquaresArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
