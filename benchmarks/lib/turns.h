#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "gradientflow/base/quantile.h"

namespace gradientflow::benchmarks {

inline double Median(std::vector<double> values) {
  return Quantile(std::move(values), 0.5);
}

// Times `sides` in turn, so that a slow phase of the machine meets all of them:
// each returns what a call took. Returns what they took in each round, by side,
// without a first round that warms up.
inline std::vector<std::vector<double>> TakeTurns(
    int rounds, const std::vector<std::function<double()>>& sides) {
  std::vector<std::vector<double>> seconds(sides.size());
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t side = 0; side < sides.size(); ++side) {
      const double took = sides[side]();
      if (round > 0) seconds[side].push_back(took);
    }
  }
  return seconds;
}

// The median over the rounds of one / other, each within its round.
inline double MedianRatio(const std::vector<double>& one,
                          const std::vector<double>& other) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < one.size(); ++i) {
    ratios.push_back(one[i] / other[i]);
  }
  return Median(ratios);
}

}  // namespace gradientflow::benchmarks
