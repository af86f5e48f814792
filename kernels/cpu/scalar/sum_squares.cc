#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
int Run(const SumSquaresArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  double sum = 0;
  for (std::size_t i = 0; i < args.n; ++i) {
    const double value = ToFloat(src[i]);
    sum += value * value;
  }
  *args.sum += sum;
  return 0;
}

}  // namespace

int SumSquares(const SumSquaresArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
