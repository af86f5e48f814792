#include <cmath>
#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
int Run(const L1NormArgs& args) {
  const T* src = static_cast<const T*>(args.src);
  double norm = 0;
  for (std::size_t i = 0; i < args.n; ++i) norm += std::fabs(ToFloat(src[i]));
  *args.norm += args.scale * static_cast<float>(norm);
  return 0;
}

}  // namespace

int L1Norm(const L1NormArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
