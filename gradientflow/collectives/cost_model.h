#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/schedule.h"

// Predicts what schedules cost, in seconds. The functions are pure, so ranks
// that put in the same numbers decide alike. The quoted letters are those of
// gradientflow/docs/algorithms.md.
namespace gradientflow {

// One path between two ranks, as measured or assumed.
struct LinkModel {
  double latency_seconds = 0;   // "a": of a message or a kSync.
  double seconds_per_byte = 0;  // "b": in each direction.
  // "c": to add a byte to another, or to write one to shared memory.
  double reduce_seconds_per_byte = 0;
  // "m": the sender's own work per message; messages follow one another.
  double message_seconds = 0;
};

struct CostModel {
  LinkModel inside;  // Between ranks of one host.
  // Between hosts. The ranks of a host share its seconds_per_byte.
  LinkModel across;
};

// The model until something has been measured: shared memory inside a host, 10
// Gb/s Ethernet between hosts.
CostModel TypicalCostModel();

// Returns the seconds until the last rank is done, by simulating the schedules
// of all ranks; ranks[r] is rank r's. The messages that a rank sends leave one
// after another, and so do those that it receives. Between hosts, the ranks of
// a host share one line in each direction. `element_bytes` is the size of an
// element on the wire. The result is infinite if the schedules do not fit
// together. An empty topology puts every rank on a host of its own, or all
// ranks on one host if the schedules are one-sided.
double PriceSchedules(const std::vector<Schedule>& ranks,
                      const Topology& topology, std::size_t element_bytes,
                      const CostModel& model);

}  // namespace gradientflow
