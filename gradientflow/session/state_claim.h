#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/session/claims.h"
#include "gradientflow/session/state_file.h"

namespace gradientflow {

// What a rank would restore, for the ranks to compare before any of them does
// it. Either all states are of one run and one step, or no session changes.
struct StateClaim {
  Refusal refusal;
  std::uint64_t job = 0;
  std::uint64_t step = 0;
  std::uint64_t selection = 0;  // Checksums of what is equal on all ranks.
  std::uint64_t momentum = 0;
  std::uint64_t loss_scale_bits = 0;
  std::uint64_t unused[3] = {};
};
StateClaim ClaimOf(const SavedState& state);

// Returns kInvalidArgument with the name of a rank whose state is of another
// run or step than that of rank 0, or differs where all states must be equal.
// If a rank refused, returns the code of its refusal, with the rank and its
// reason. The result is the same on all ranks. `claims` are those of all ranks,
// by rank.
Status CheckClaims(const std::vector<StateClaim>& claims);

}  // namespace gradientflow
