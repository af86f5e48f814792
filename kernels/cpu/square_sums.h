#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"

// The order of SumSquaresArgs beyond a block's vectors, for every table.
namespace gradientflow::kernels {

// The sum of neighbouring lanes, as a tree; destroys them.
template <std::size_t kCount>
double FoldLanes(double (&lanes)[kCount]) {
  for (std::size_t far = kCount / 2; far > 0; far /= 2) {
    for (std::size_t i = 0; i < far; ++i) lanes[i] += lanes[i + far];
  }
  return lanes[0];
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
