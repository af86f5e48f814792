#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/session/claims.h"
#include "gradientflow/session/state_file.h"

namespace gradientflow {

// What a rank would restore, for the ranks to compare before any does: all of
// their states are of one run and one step, or nobody's session changes.
struct StateClaim {
  Refusal refusal;
  std::uint64_t job = 0;
  std::uint64_t step = 0;
  std::uint64_t selection = 0;  // Checksums of what is alike on all ranks.
  std::uint64_t momentum = 0;
  std::uint64_t loss_scale_bits = 0;
  std::uint64_t unused[3] = {};
};
StateClaim ClaimOf(const SavedState& state);

// kInvalidArgument names a rank whose state is not of the run or the step of
// rank 0's, or differs where all are alike. A refusal: its code, the rank and
// its reason. The same on all ranks. `claims`: of all, by rank.
Status CheckClaims(const std::vector<StateClaim>& claims);

}  // namespace gradientflow
