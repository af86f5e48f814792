#include "gradientflow/planner/step.h"

#include <algorithm>
#include <cmath>

#include "gradientflow/planner/csc_step.h"
#include "gradientflow/planner/normal_max.h"
#include "gradientflow/planner/traffic.h"

namespace gradientflow::planner {
namespace {

Traffic Run(const Workload& workload, const Exchange& exchange,
            const Bucketing& bucketing, const Cluster& cluster,
            const CallPrices& prices) {
  Traffic traffic;
  for (const Message& message : bucketing.messages) {
    const double seconds = prices.Seconds(message.bytes);
    const double begins = std::max(
        traffic.end, BeginOf(workload, exchange, message, traffic.delay));
    traffic.end = begins + seconds;
    traffic.busy += seconds;
    if (cluster.one_rank()) continue;
    traffic.delay +=
        DelayOf(cluster, workload.backward_seconds + traffic.delay - begins,
                seconds, prices.HostSeconds(message.bytes));
  }
  return traffic;
}

Traffic RunStep(const Workload& workload, const Exchange& exchange,
                const Bucketing& bucketing, const Cluster& cluster,
                const CallPrices& prices) {
  if (!exchange.csc || std::isinf(cluster.memory_bytes_per_second)) {
    return Run(workload, exchange, bucketing, cluster, prices);
  }
  return PlayCscTraffic(workload, exchange, bucketing, cluster, prices);
}

void AddSlowest(const Workload& workload, const Cluster& cluster,
                StepTerms* terms) {
  if (workload.spread_fraction == 0) return;
  terms->slowest = workload.spread_fraction * workload.compute_seconds *
                   ExpectedMaximum(cluster.ranks());
  terms->step += terms->slowest;
}

}  // namespace

StepForecast PlayStep(const Workload& workload, const Exchange& exchange,
                      const Bucketing& bucketing, const Cluster& cluster,
                      const StepPrices& prices) {
  const Traffic traffic =
      Run(workload, exchange, bucketing, cluster, *prices.buckets);
  const double exposed = traffic.exposed(workload.backward_seconds);
  StepForecast forecast;
  forecast.theta_bytes = bucketing.theta_bytes;
  forecast.buckets = bucketing.messages.size();
  double latency = 0;
  for (const Message& message : bucketing.messages) {
    latency += prices.buckets->LatencySeconds(message.bytes);
    forecast.largest_bytes = std::max(forecast.largest_bytes, message.bytes);
  }
  StepTerms& terms = forecast.terms;
  terms.compute = workload.compute_seconds;
  terms.host = traffic.delay;
  terms.latency = traffic.busy > 0 ? exposed * latency / traffic.busy : 0.0;
  terms.bytes = exposed - terms.latency;
  terms.hidden = std::max(0.0, traffic.busy - exposed);
  if (exchange.csc) {
    const Traffic passing =
        RunStep(workload, exchange, bucketing, cluster, *prices.buckets);
    const auto norms = ChunksOf(workload, exchange) * sizeof(float);
    terms.csc = passing.after(workload.backward_seconds) -
                traffic.after(workload.backward_seconds) +
                prices.norms->Seconds(static_cast<double>(norms));
  }
  terms.step =
      terms.compute + terms.host + terms.latency + terms.bytes + terms.csc;
  AddSlowest(workload, cluster, &terms);
  return forecast;
}

// What does not depend on the buckets need not be compared.
StepForecast BestStep(const Workload& workload, const Exchange& exchange,
                      const std::vector<Bucketing>& bucketings,
                      const Cluster& cluster, const StepPrices& prices) {
  const Bucketing* best = nullptr;
  double least = 0;
  // From the largest buckets on, so that fewer win among equals.
  for (auto it = bucketings.rbegin(); it != bucketings.rend(); ++it) {
    const double backward = workload.backward_seconds;
    const double after =
        backward + RunStep(workload, exchange, *it, cluster, *prices.buckets)
                       .after(backward);
    if (best != nullptr && after >= least * (1 - 1e-9)) continue;
    best = &*it;
    least = after;
  }
  return PlayStep(workload, exchange, *best, cluster, prices);
}

}  // namespace gradientflow::planner
