#include "gradientflow/planner/traffic.h"

namespace gradientflow::planner {

double DelayOf(const Cluster& cluster, double under, double seconds,
               double host_seconds) {
  if (under <= 0) return 0;
  const double own = std::max(seconds - host_seconds, 0.0);
  const double part = under >= own ? 1 : under / own;
  return cluster.backward_seconds_per_call + part * host_seconds;
}

double BeginOf(const Workload& workload, const Exchange& exchange,
               const Message& message, double delay) {
  return std::max(message.ready_seconds + delay,
                  exchange.overlap ? 0.0 : workload.backward_seconds);
}

}  // namespace gradientflow::planner
