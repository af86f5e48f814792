#pragma once

#include <vector>

namespace gradientflow {

// Returns the value that a share of the values is at most: with the values in
// order, the one at `share` of the way from the first to the last, and between
// two of them in proportion. So the median of an even number of values is the
// mean of the middle two. 0 if there are none. `share` is in [0, 1].
// benchmarks/lib/report.py does the same.
double Quantile(std::vector<double> values, double share);

}  // namespace gradientflow
