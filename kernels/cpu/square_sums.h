#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"

// The order of SumSquaresArgs above the level of a block's vectors, for every
// table.
namespace gradientflow::kernels {

// The sum of neighbouring lanes, as a tree; destroys them.
template <std::size_t kCount>
double FoldLanes(double (&lanes)[kCount]) {
  for (std::size_t far = kCount / 2; far > 0; far /= 2) {
    for (std::size_t i = 0; i < far; ++i) lanes[i] += lanes[i + far];
  }
  return lanes[0];
}

// The totals of one call.
class SquareTotals {
 public:
  // Adds the sum of the next block.
  void Add(double sum) {
    double& total = totals_[blocks_ % kSquareTotals];
    total = blocks_ < kSquareTotals ? sum : total + sum;
    ++blocks_;
  }

  // May be called once.
  double Fold() {
    const std::size_t used = std::min(blocks_, kSquareTotals);
    if (used == 0) return 0;
    // Totals to which no block has been added are 0 and change nothing.
    for (std::size_t far = 1; far < used; far *= 2) {
      for (std::size_t i = 0; i + far < used; i += 2 * far) {
        totals_[i] += totals_[i + far];
      }
    }
    return totals_[0];
  }

 private:
  double totals_[kSquareTotals];  // At most as many as there are blocks.
  std::size_t blocks_ = 0;
};

}  // namespace gradientflow::kernels
