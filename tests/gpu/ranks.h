#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::testing {

// Runs `rank_main(rank)` in `ranks` child processes at once and returns the
// results, by rank. The first child that fails or dies ends the others, and the
// error names it. Children die with this process, however it ends. REQUIRES: no
// other threads in this process.
Result<std::vector<std::string>> RunRanks(
    int ranks, const std::function<Result<std::string>(int rank)>& rank_main);

}  // namespace gradientflow::testing
