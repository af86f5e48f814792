#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
int Run(const FindNonfiniteArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  for (std::size_t i = 0; i < args.n; ++i) {
    if (IsNonFinite(src[i])) *args.nonfinite = 1;
  }
  return 0;
}

}  // namespace

int FindNonfinite(const FindNonfiniteArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
