#pragma once

namespace gradientflow {

// The TCP connections between two ranks that carry data, if no option says
// their number: few ranks leave cores for a second one.
constexpr int ConnectionsByRanks(int ranks) { return ranks <= 8 ? 2 : 1; }

}  // namespace gradientflow
