#include "gradientflow/planner/quartiles.h"

#include "gradientflow/base/quantile.h"

namespace gradientflow::planner {

Quartiles QuartilesOf(const std::vector<double>& values) {
  return {.median = Quantile(values, 0.5),
          .lower_quartile = Quantile(values, 0.25),
          .upper_quartile = Quantile(values, 0.75)};
}

double SpreadOf(const Quartiles& of) {
  return (of.upper_quartile - of.lower_quartile) / 1.349;
}

}  // namespace gradientflow::planner
