#pragma once

#include <algorithm>

#include "gradientflow/planner/cluster.h"
#include "gradientflow/planner/workload.h"

namespace gradientflow::planner {

// What the buckets of a step do, in seconds.
struct Traffic {
  double end = 0;    // Of the last bucket, after backward started.
  double delay = 0;  // Of backward.
  double busy = 0;   // In which a bucket was under way.
  double exposed(double backward) const {
    return std::max(0.0, end - backward - delay);
  }
  // By how much the exchange makes the step longer.
  double after(double backward) const { return exposed(backward) + delay; }
};

// By how much a call that takes `seconds` and begins `under` seconds before
// backward would end makes backward longer; `host_seconds` if all of it is
// under backward. Its messages are spread over all of it, so those that are
// sent after backward take nothing from it; what they take from it keeps it
// beside the call for longer.
double DelayOf(const Cluster& cluster, double under, double seconds,
               double host_seconds);

// When a message may begin, as far as its gradients and backward allow, which
// is late by `delay`.
double BeginOf(const Workload& workload, const Exchange& exchange,
               const Message& message, double delay);

}  // namespace gradientflow::planner
