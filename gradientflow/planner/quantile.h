#pragma once

#include <vector>

#include "gradientflow/planner/measured.h"

namespace gradientflow::planner {

// Returns the value below which this share of the values lies, between two of
// them where it falls between. 0 if there are none. `share` is in [0, 1].
double Quantile(std::vector<double> values, double share);

Quartiles QuartilesOf(const std::vector<double>& values);

// The standard deviation of a normal distribution with these quartiles: a step
// that was disturbed from outside says nothing about the others.
double SpreadOf(const Quartiles& of);

}  // namespace gradientflow::planner
