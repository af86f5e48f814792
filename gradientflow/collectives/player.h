#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

// Prices schedules by simulating them. A simulation includes what the formulas
// of the algorithms leave out, such as ranks of unequal hosts that wait for
// each other. Tests check the formulas by it, and the planner uses it for few
// ranks.
namespace gradientflow {

// Returns the seconds until the last rank is done, by simulating the schedules
// of all ranks; ranks[r] is rank r's. The messages that a rank sends leave one
// after another, and so do those that it receives. Between hosts, the ranks of
// a host share one line in each direction. `element_bytes` is the size of an
// element on the wire. The result is infinite if the schedules do not fit
// together. An empty topology puts every rank on a host of its own, or all
// ranks on one host if the schedules are one-sided. Leaves out
// LinkModel::long_seconds_per_byte. A pure function; any thread.
double PriceSchedules(const std::vector<Schedule>& ranks,
                      const Topology& topology, std::size_t element_bytes,
                      const CostModel& model);

}  // namespace gradientflow
