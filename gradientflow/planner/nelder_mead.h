#pragma once

#include <functional>
#include <vector>

namespace gradientflow::planner {

// A box with a point to start from; all of the same length.
struct SearchBox {
  std::vector<double> start;
  std::vector<double> least;
  std::vector<double> most;
};

// Returns a point of the box at which `cost` has a local minimum, by the
// simplex method of Nelder & Mead (1965): it needs no derivatives, which these
// costs have only piecewise. The search starts anew from where it ended until
// that no longer helps. Points outside the box are moved to its border. Costs
// up to some thousand calls of `cost`.
std::vector<double> Minimize(
    const SearchBox& box,
    const std::function<double(const std::vector<double>&)>& cost);

}  // namespace gradientflow::planner
