#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/planner/call_prices.h"
#include "gradientflow/planner/cluster.h"
#include "gradientflow/planner/workload.h"

namespace gradientflow::planner {

// Where the time of a step goes, in seconds. All but `hidden` add up to `step`.
struct StepTerms {
  double compute = 0;  // A rank's own work.
  double slowest = 0;  // Waiting for the slowest rank.
  double host = 0;     // By how much calls made backward longer.
  double latency = 0;  // Communication after backward: what depends on calls,
  double bytes = 0;    // and what depends on bytes.
  double csc = 0;      // CSC's pass over memory and its exchange of norms.
  double hidden = 0;   // Communication under backward.
  double step = 0;
};

struct StepForecast {
  StepTerms terms;
  std::size_t theta_bytes = 0;
  std::size_t buckets = 0;
  double largest_bytes = 0;  // On the wire, of the largest bucket.
};

// The prices of a step's calls. Both are borrowed.
struct StepPrices {
  const CallPrices* buckets = nullptr;
  const CallPrices* norms = nullptr;  // Of float32; only for CSC.
};

// Plays a step: one bucket travels at a time, as soon as its gradients are
// there (with CSC: and its own part of the pass over memory has been made), or
// after backward if the exchange does not overlap. With CSC the norms follow,
// once the whole pass has been made. REQUIRES messages.
StepForecast PlayStep(const Workload& workload, const Exchange& exchange,
                      const Bucketing& bucketing, const Cluster& cluster,
                      const StepPrices& prices);

// The bucketing that ends the step first; among equals (to 1e-9) the one with
// the fewest messages. REQUIRES a bucketing.
StepForecast BestStep(const Workload& workload, const Exchange& exchange,
                      const std::vector<Bucketing>& bucketings,
                      const Cluster& cluster, const StepPrices& prices);

}  // namespace gradientflow::planner
