#pragma once

#include <functional>
#include <span>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// Runs a collective; blocks until it has ended.
using RunCall = std::function<Status(const CollectiveCall&)>;

// Replaces each of the times by that of the rank for which it is the largest.
// All ranks of the group make this call, with as many times. Errors are those
// of `run`.
Status AgreeOnSlowest(const RunCall& run, GroupId group,
                      std::span<double> seconds);

// Measures the links of a group whose ranks are on several hosts. All ranks of
// the group make this call, and get the same model: the numbers of the slowest
// rank. For each class of link (inside a host, between hosts) all ranks
// exchange a small message with one peer and small ones with several at a time,
// then 128 KiB and 32 KiB with one peer; then all of that again. Peers are one
// or two hosts or places away. First all do so at the same time, since that is
// how most collectives use links and cores, then only rank 0 with its peers. A
// rank sends 0.75 MiB in all to other hosts and 3 MiB inside its own, and rank
// 0 twice as much. The former keep a line of 1 Gb/s busy for 6 ms for each rank
// of a host.
//
// Unless links open only when they are needed, a small message then goes down a
// tree and back some times. What that takes beyond its price is what ranks that
// wait take from those that work, where they share cores.
//
// The speed of reducing is not measured. If all ranks are on one host, nothing
// is: measurements on busy cores differ more than hosts do, and without them
// the same job chooses, and rounds, the same in every run.
Result<CostModels> MeasureLinks(const CallGroup& group, const RunCall& run,
                                const Clock& clock);

}  // namespace gradientflow
