#include <cerrno>
#include <cmath>
#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
int Run(const ResidualArgs& args) {
  T* grads = static_cast<T*>(args.grads);
  double norm = 0;
  if (args.residual == nullptr) {
    if (args.send || args.zero_kept) return EINVAL;
    for (std::size_t i = 0; i < args.n; ++i) {
      const float sum = ToFloat(grads[i]);
      norm += std::fabs(sum);
      grads[i] = FromFloat<T>(args.keep_factor * sum);
    }
  }
  for (std::size_t i = 0; args.residual != nullptr && i < args.n; ++i) {
    const float sum = ToFloat(grads[i]) + args.residual[i];
    norm += std::fabs(sum);
    if (args.send) {
      grads[i] = FromFloat<T>(sum);
      const float left = sum - ToFloat(grads[i]);
      args.residual[i] = std::isfinite(left) ? left : 0;
    } else {
      args.residual[i] = args.keep_factor * sum;
      if (args.zero_kept) grads[i] = T{};
    }
  }
  if (args.norm != nullptr) *args.norm += static_cast<float>(norm);
  return 0;
}

}  // namespace

int Residual(const ResidualArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
