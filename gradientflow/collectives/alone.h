#pragma once

#include <vector>

#include "gradientflow/collectives/elements.h"
#include "gradientflow/collectives/operation.h"
#include "kernels/kernels.h"

// What an allreduce of a group of one rank does: it rounds and scales like that
// of a larger group, in one kernel.
namespace gradientflow {

// Takes the next parts of the operation that are there: so few that they are
// still in the caches when the caller looks at the results.
std::vector<Extent> TakePartsAlone(Operation* operation);

// Rounds and scales `parts` of the operation, on the call's workers if it has
// any. Returns whether a result is not finite.
bool RoundAlone(const Operation& operation, const std::vector<Extent>& parts,
                const kernels::CpuKernelTable& kernels);

}  // namespace gradientflow
