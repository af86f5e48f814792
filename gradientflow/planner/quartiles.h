#pragma once

#include <vector>

#include "gradientflow/planner/measured.h"

namespace gradientflow::planner {

Quartiles QuartilesOf(const std::vector<double>& values);

// The standard deviation of a normal distribution with these quartiles: a step
// that was disturbed from outside says nothing about the others.
double SpreadOf(const Quartiles& of);

}  // namespace gradientflow::planner
