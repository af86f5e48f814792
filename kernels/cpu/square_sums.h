#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"

// The order of SumSquaresArgs beyond a block's lanes, for every table.
namespace gradientflow::kernels {

// Lanes, halved, four by four.
inline constexpr std::size_t kSquareFours = kSquareLanes / 8;

// Their sum; destroys them.
inline double FoldFours(double* fours) {
  for (std::size_t far = kSquareFours / 2; far > 0; far /= 2) {
    for (std::size_t i = 0; i < far; ++i) fours[i] += fours[i + far];
  }
  return fours[0];
}

// Of one call.
class SquareTotals {
 public:
  // The blocks' sums, in order.
  void Add(double sum) {
    double& total = totals_[blocks_ % kSquareTotals];
    total = blocks_ < kSquareTotals ? sum : total + sum;
    ++blocks_;
  }

  // Once.
  double Fold() {
    const std::size_t used = std::min(blocks_, kSquareTotals);
    if (used == 0) return 0;
    // A total that no block has added to is 0, and changes nothing.
    for (std::size_t far = 1; far < used; far *= 2) {
      for (std::size_t i = 0; i + far < used; i += 2 * far) {
        totals_[i] += totals_[i + far];
      }
    }
    return totals_[0];
  }

 private:
  double totals_[kSquareTotals];  // As many as blocks, at most.
  std::size_t blocks_ = 0;
};

}  // namespace gradientflow::kernels
