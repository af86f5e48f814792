#include <cstddef>

#include "kernels/cpu/element.h"
#include "kernels/cpu/functions.h"

namespace gradientflow::kernels::scalar {
namespace {

template <class T>
int Run(const SgdArgs& args) {
  const T* grads = static_cast<const T*>(args.grads);
  for (std::size_t i = 0; i < args.n; ++i) {
    float& weight = args.weights[i];
    float& momentum_buf = args.momentum_buf[i];
    const float step = args.lr * (args.grad_scale * ToFloat(grads[i]) +
                                  args.weight_decay * weight);
    momentum_buf = args.momentum * momentum_buf + step;
    weight -=
        args.nesterov ? args.momentum * momentum_buf + step : momentum_buf;
  }
  return 0;
}

}  // namespace

int Sgd(const SgdArgs& args, void*) {
  return VisitGradientType(args.type, [&](auto tag) {
    return Run<typename decltype(tag)::Type>(args);
  });
}

}  // namespace gradientflow::kernels::scalar
