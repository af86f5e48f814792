#include "gradientflow/planner/predict.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/planner/quartiles.h"

namespace gradientflow::planner {
namespace {

// 80 % of a normal distribution are within so many standard deviations, 99 %
// below the second number of them.
constexpr double kWithin80 = 1.2816;
constexpr double kBelow99 = 2.3263;

// The standard deviation of a level, as a part of its p50.
double RelativeSpread(const Level& level) {
  return level.p50 > 0 ? std::abs(level.p99 - level.p50) / kBelow99 / level.p50
                       : 0;
}

// How far off the parts of a step are, each as a part of itself.
struct Spreads {
  double compute = 0;
  double latency = 0;
  double bytes = 0;
};

Spreads SpreadsOf(const Profile& profile, const Probe& probe, int hosts) {
  Spreads spreads;
  const Quartiles& step = profile.step_seconds;
  if (step.median > 0) {
    spreads.compute = SpreadOf(step) / step.median;
  }
  const ProbedPair* pair =
      FindPair(probe, hosts > 1 ? PairClass::kOtherHost : PairClass::kSameHost);
  if (pair == nullptr) return spreads;
  const PairLevels& levels = pair->loaded ? *pair->loaded : pair->idle;
  spreads.latency = RelativeSpread(levels.latency_seconds);
  for (const Bandwidth& entry : levels.bandwidth) {
    if (entry.direction != Direction::kBothWays) continue;
    spreads.bytes =
        std::max(spreads.bytes, RelativeSpread(entry.bytes_per_second));
  }
  return spreads;
}

// Errors that have nothing to do with each other add up by their squares. A
// step has many calls, whose latencies and rates even out.
double ErrorOf(const StepForecast& step, const Spreads& spreads) {
  const StepTerms& terms = step.terms;
  const auto calls =
      static_cast<double>(std::max<std::size_t>(step.buckets, 1));
  const double parts[] = {
      kModelErrorFraction,
      kWithin80 * spreads.compute * terms.compute / terms.step,
      kWithin80 * spreads.latency / std::sqrt(calls) * terms.latency /
          terms.step,
      kWithin80 * spreads.bytes / std::sqrt(calls) * terms.bytes / terms.step,
  };
  double squares = 0;
  for (const double part : parts) squares += part * part;
  return std::sqrt(squares);
}

// An allreduce of n bytes among G hosts takes 2 (G - 1) n across their lines.
double BytesOut(const Workload& workload, const Exchange& exchange, int hosts) {
  double sent = workload.elements();
  if (exchange.csc) sent *= 1 - exchange.sparsity;
  double bytes = sent * static_cast<double>(exchange.wire_element_bytes);
  if (exchange.csc) {
    bytes += static_cast<double>(ChunksOf(workload, exchange) * sizeof(float));
  }
  return 2.0 * (hosts - 1) * bytes;
}

// The prices of one cluster, by bytes per element. The norms of CSC are
// float32.
class PriceLists {
 public:
  explicit PriceLists(const Cluster& cluster) : cluster_(cluster) {}

  const CallPrices& Of(std::size_t wire_element_bytes) {
    auto& list = lists_[wire_element_bytes];
    if (!list) {
      list = std::make_unique<CallPrices>(cluster_, wire_element_bytes,
                                          Pricing::kPlayed);
    }
    return *list;
  }

 private:
  const Cluster& cluster_;
  std::map<std::size_t, std::unique_ptr<CallPrices>> lists_;
};

Prediction PredictOne(const Workload& workload, const Exchange& exchange,
                      const std::vector<Bucketing>& bucketings,
                      const Cluster& cluster, PriceLists* lists) {
  const CallPrices& prices = lists->Of(exchange.wire_element_bytes);
  const CallPrices* norms = exchange.csc ? &lists->Of(sizeof(float)) : nullptr;
  Prediction prediction;
  prediction.ranks = cluster.ranks();
  prediction.hosts = cluster.hosts();
  prediction.exchange = exchange;
  prediction.step =
      BestStep(workload, exchange, bucketings, cluster, {&prices, norms});
  const StepForecast& step = prediction.step;
  const CollectiveAlgorithm* algorithm = prices.AlgorithmOf(step.largest_bytes);
  prediction.algorithm =
      cluster.ranks() == 1 || algorithm == nullptr ? "-" : algorithm->name;
  prediction.samples_per_second =
      cluster.ranks() * workload.batch_samples / step.terms.step;
  prediction.efficiency = step.terms.compute / step.terms.step;
  prediction.bytes_out = BytesOut(workload, exchange, cluster.hosts());
  return prediction;
}

Status Check(const Workload& workload, const PredictOptions& options) {
  if (workload.elements() == 0) {
    return {StatusCode::kInvalidArgument,
            "profile: tensors: expected one with elements"};
  }
  if (workload.compute_seconds <= 0) {
    return {StatusCode::kInvalidArgument,
            "profile: step_seconds: expected more than wait_seconds"};
  }
  for (const int ranks : options.ranks) {
    if (ranks >= 1 && options.ranks_per_host >= 1) continue;
    return {StatusCode::kInvalidArgument,
            StrCat("expected at least one rank, and at least one per host; "
                   "seen ",
                   ranks, " and ", options.ranks_per_host)};
  }
  return {};
}

}  // namespace

std::string NameOf(const Exchange& exchange) {
  std::string name = exchange.csc ? "csc" : "dense";
  if (exchange.csc) name += StrCat(" ", exchange.sparsity);
  name += exchange.wire_element_bytes == 2 ? " 16-bit" : " 32-bit";
  if (!exchange.overlap) name += " after";
  return name;
}

Result<std::vector<Prediction>> Predict(const Profile& profile,
                                        const Probe& probe,
                                        const PredictOptions& options) {
  const Workload workload = WorkloadFrom(profile);
  GF_RETURN_IF_ERROR(Check(workload, options));
  std::vector<std::vector<Bucketing>> bucketings;
  for (const Exchange& exchange : options.exchanges) {
    bucketings.push_back(BucketingsOf(workload, exchange));
  }
  std::vector<Prediction> predictions;
  for (const int ranks : options.ranks) {
    ClusterOptions wanted{static_cast<const HostOptions&>(options)};
    wanted.ranks = ranks;
    const auto planned = ClusterFromProbe(probe, wanted);
    if (!planned.ok()) return planned.status();
    const Cluster& cluster = planned.value().cluster;
    PriceLists lists(cluster);
    const Spreads spreads = SpreadsOf(profile, probe, cluster.hosts());
    for (std::size_t i = 0; i < options.exchanges.size(); ++i) {
      Prediction prediction = PredictOne(workload, options.exchanges[i],
                                         bucketings[i], cluster, &lists);
      const double error = ErrorOf(prediction.step, spreads);
      prediction.low_seconds = prediction.step.terms.step / (1 + error);
      prediction.high_seconds = prediction.step.terms.step * (1 + error);
      prediction.extrapolated = planned.value().extrapolated;
      predictions.push_back(std::move(prediction));
    }
  }
  return predictions;
}

}  // namespace gradientflow::planner
