#include "gradientflow/base/quantile.h"

#include <algorithm>
#include <cstddef>

namespace gradientflow {

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), nth, values.end());
  const double low = *nth;
  const double part = at - static_cast<double>(below);
  if (part == 0) return low;
  const double high = *std::min_element(nth + 1, values.end());
  if (high == low) return low;  // Infinity, say.
  return low + part * (high - low);
}

}  // namespace gradientflow
