#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/schedule.h"

// What the collectives have in common that read the buffers of other ranks in
// place: all ranks wait for each other, each reads what it needs, and all wait
// again, so that no buffer changes while it is read. Small buffers are read
// from copies (Schedule::mailed), which spares the second wait.
namespace gradientflow {

// Returns the schedule of a rank that shows `shown`, then takes the `actions`.
// `most_elements` is the most that any rank shows; if it is 0, nothing is to be
// done. REQUIRES the same number on all ranks.
Schedule OneSided(const CallShape& shape, Slice shown,
                  std::size_t most_elements, std::vector<Action> actions);

// Appends an action that copies `src` of what `peer` shows to `dst`. A rank
// copies its own elements without a kPull.
void AppendPull(int rank, int peer, Slice src, Slice dst,
                std::vector<Action>* actions);

// The price of OneSided() on a single host: each rank shows up to `shown_bytes`
// and the busiest moves `moved_bytes`.
Price OneSidedPrice(const CallQuestion& question, double shown_bytes,
                    double moved_bytes);

}  // namespace gradientflow
