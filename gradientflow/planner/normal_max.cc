#include "gradientflow/planner/normal_max.h"

#include <cmath>

namespace gradientflow::planner {

// The integral of 1 - F^n above 0, less that of F^n below it, where F is the
// normal distribution. Both are smooth and vanish at the ends, so the
// trapezoidal rule converges fast.
double ExpectedMaximum(int count) {
  if (count == 1) return 0;
  constexpr double kEnd = 9;
  constexpr int kSteps = 720;
  constexpr double kStep = kEnd / kSteps;
  const auto below = [&](double x) {
    return std::pow(0.5 * std::erfc(-x / std::sqrt(2.0)), count);
  };
  double sum = 0;
  for (int k = 0; k <= kSteps; ++k) {
    const double x = k * kStep;
    const double weight = k == 0 || k == kSteps ? 0.5 : 1.0;
    sum += weight * (1 - below(x) - below(-x));
  }
  return sum * kStep;
}

}  // namespace gradientflow::planner
