#pragma once

#include "gradientflow/planner/call_prices.h"
#include "gradientflow/planner/cluster.h"
#include "gradientflow/planner/traffic.h"
#include "gradientflow/planner/workload.h"

namespace gradientflow::planner {

// Plays the buckets of a step with CSC's passes over host memory, up to the
// exchange of norms. The end is that of the last bucket or pass.
// REQUIRES messages, and passes that take time: a finite
// memory_bytes_per_second.
Traffic PlayCscTraffic(const Workload& workload, const Exchange& exchange,
                       const Bucketing& bucketing, const Cluster& cluster,
                       const CallPrices& prices);

}  // namespace gradientflow::planner
