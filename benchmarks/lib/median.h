#pragma once

#include <algorithm>
#include <vector>

namespace gradientflow::benchmarks {

// The middle of `values`, or the mean of the middle two. REQUIRES: not empty.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  if (values.size() % 2 == 1) return values[half];
  return (values[half - 1] + values[half]) / 2;
}

}  // namespace gradientflow::benchmarks
