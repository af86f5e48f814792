#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/cpu/chunks/functions.h"

namespace gradientflow::kernels::cpu {
namespace {

float Rate(const LarsRatesArgs& args, std::size_t tensor) {
  if (args.skip != nullptr && args.skip[tensor] != 0) return args.lr;
  double weight_sum = 0;
  double gradient_sum = 0;
  for (std::uint64_t t = args.first_tile[tensor];
       t < args.first_tile[tensor + 1]; ++t) {
    weight_sum += args.weight_squares[t];
    gradient_sum += args.gradient_squares[t];
  }
  if (weight_sum == 0 || gradient_sum == 0) return args.lr;
  const double weight_norm = std::sqrt(weight_sum);
  const double factor =
      double{args.eta} * weight_norm /
      (double{args.grad_scale} * std::sqrt(gradient_sum) +
       double{args.weight_decay} * weight_norm + double{args.eps});
  return args.lr * static_cast<float>(factor);
}

}  // namespace

int LarsRates(const LarsRatesArgs& args, void*) {
  for (std::size_t t = 0; t < args.tensors; ++t) args.rates[t] = Rate(args, t);
  return 0;
}

}  // namespace gradientflow::kernels::cpu
