#include "gradientflow/planner/step.h"

#include <algorithm>
#include <limits>

#include "gradientflow/planner/normal_max.h"

namespace gradientflow::planner {
namespace {

constexpr double kNoPass = std::numeric_limits<double>::infinity();

struct Traffic {
  double end = 0;    // Of the last bucket.
  double delay = 0;  // Of backward.
  double busy = 0;   // Seconds in which a bucket was under way.
  double exposed(double backward) const {
    return std::max(0.0, end - backward - delay);
  }
  // By how much the exchange makes the step longer.
  double after(double backward) const { return exposed(backward) + delay; }
};

// By how much a call makes backward longer that begins `under` seconds before
// backward would end. Its messages are spread over all of it, so those that are
// sent after backward take nothing from it; what they take from it keeps it
// beside the call for longer.
double DelayOf(const Cluster& cluster, double under, double seconds,
               double host_seconds) {
  if (under <= 0) return 0;
  const double own = std::max(seconds - host_seconds, 0.0);
  const double part = under >= own ? 1 : under / own;
  return cluster.backward_seconds_per_call + part * host_seconds;
}

// When these parts of CSC's pass are made, if those before them were at
// `passed` and backward is late by `delay`.
double PassedAt(double passed, const std::vector<Pass>& passes, double delay,
                double memory_bytes_per_second) {
  for (const Pass& pass : passes) {
    passed = std::max(passed, pass.ready_seconds + delay) +
             pass.bytes / memory_bytes_per_second;
  }
  return passed;
}

Traffic Run(const Workload& workload, bool overlap,
            const std::vector<Message>& messages, const Cluster& cluster,
            double memory_bytes_per_second, const CallPrices& prices) {
  Traffic traffic;
  double passed = 0;
  for (const Message& message : messages) {
    const double seconds = prices.Seconds(message.bytes);
    passed = PassedAt(passed, message.passes, traffic.delay,
                      memory_bytes_per_second);
    const double begins =
        std::max({traffic.end, passed, message.ready_seconds + traffic.delay,
                  overlap ? 0.0 : workload.backward_seconds});
    traffic.end = begins + seconds;
    traffic.busy += seconds;
    if (cluster.one_rank()) continue;
    traffic.delay +=
        DelayOf(cluster, workload.backward_seconds + traffic.delay - begins,
                seconds, prices.HostSeconds(message.bytes));
  }
  return traffic;
}

// With CSC's pass. What is sent goes first, so the wire waits for that alone;
// what is kept is passed over meanwhile, and only the norms wait for it. There
// is always something to do while gradients are there, so all is done at the
// same time whatever goes first.
Traffic RunStep(const Workload& workload, const Exchange& exchange,
                const Bucketing& bucketing, const Cluster& cluster,
                const StepPrices& prices) {
  const double memory =
      exchange.csc ? cluster.memory_bytes_per_second : kNoPass;
  Traffic traffic = Run(workload, exchange.overlap, bucketing.messages, cluster,
                        memory, *prices.buckets);
  traffic.end = std::max(traffic.end,
                         PassedAt(0, bucketing.passes, traffic.delay, memory));
  return traffic;
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
  const Traffic traffic = Run(workload, exchange.overlap, bucketing.messages,
                              cluster, kNoPass, *prices.buckets);
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
        RunStep(workload, exchange, bucketing, cluster, prices);
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
        backward +
        RunStep(workload, exchange, *it, cluster, prices).after(backward);
    if (best != nullptr && after >= least * (1 - 1e-9)) continue;
    best = &*it;
    least = after;
  }
  return PlayStep(workload, exchange, *best, cluster, prices);
}

}  // namespace gradientflow::planner
