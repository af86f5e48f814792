#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/schedule.h"

// What schedules cost. Seconds and bytes; pure functions, so that all ranks
// that put in the same numbers decide alike.
namespace gradientflow {

// One path between two ranks, as measured or assumed.
struct LinkModel {
  double latency_seconds = 0;   // Of a message, or a kSync. "a"
  double seconds_per_byte = 0;  // Per direction. "b"
  // Of adding one byte to another; also of writing one to shared memory. "c"
  double reduce_seconds_per_byte = 0;
  // A rank's own work per message it sends, one after the other. "m"
  double message_seconds = 0;
};

struct CostModel {
  LinkModel inside;  // Between ranks of one host.
  // Between hosts. The ranks of a host share seconds_per_byte.
  LinkModel across;
};

// To go on until something has been measured: shared memory inside, 10 Gb/s
// Ethernet across.
CostModel TypicalCostModel();

// Seconds until the last rank is done, found by playing the schedules of all
// ranks (ranks[r] is rank r's) against the clock: a rank's messages leave one
// after the other and so do those that come in; between hosts the ranks of a
// host share one line each way. `element_bytes`: on the wire. Infinite if the
// schedules do not fit together. An empty topology: every rank on a host of
// its own, or on one host if the schedules are one-sided.
double PriceSchedules(const std::vector<Schedule>& ranks,
                      const Topology& topology, std::size_t element_bytes,
                      const CostModel& model);

}  // namespace gradientflow
