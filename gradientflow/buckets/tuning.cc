#include "gradientflow/buckets/tuning.h"

#include <algorithm>
#include <array>
#include <utility>

#include "gradientflow/base/quantile.h"

namespace gradientflow {
namespace {

constexpr std::size_t kSmallElements = 1024;
constexpr int kSmallRounds = 9;
constexpr int kLargeRounds = 5;

// Returns the median time of allreduces of the first `elements` elements.
Result<double> TimeAllreduce(const CostProbe& probe, std::size_t elements,
                             int rounds) {
  CollectiveCall call;
  call.output = probe.data;
  call.count = elements;
  call.dtype = probe.dtype;
  call.wire = probe.wire;
  Result<std::vector<double>> times = probe.time(call, rounds);
  if (!times.ok()) return times.status();
  return Quantile(std::move(times.value()), 0.5);
}

}  // namespace

Result<std::vector<double>> TimeByClock(const RunCall& run, const Clock& clock,
                                        const CollectiveCall& call,
                                        int rounds) {
  std::vector<double> times;
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    const Clock::Time begin = clock.Now();
    GF_RETURN_IF_ERROR(run(call));
    if (round >= 0) times.push_back(Seconds(clock.Now() - begin));
  }
  return times;
}

Result<CallCost> MeasureCallCost(const CostProbe& probe) {
  const Result<double> small_time =
      TimeAllreduce(probe, kSmallElements, kSmallRounds);
  if (!small_time.ok()) return small_time.status();
  const Result<double> large_time =
      TimeAllreduce(probe, probe.elements, kLargeRounds);
  if (!large_time.ok()) return large_time.status();
  // Every rank uses the times of the slowest.
  std::array<double, 2> slowest = {small_time.value(), large_time.value()};
  GF_RETURN_IF_ERROR(AgreeOnSlowest(probe.run, /*group=*/0, slowest));

  const auto more = static_cast<double>(probe.elements - kSmallElements);
  const double bytes = static_cast<double>(SizeOf(probe.wire)) * more;
  CallCost cost;
  cost.seconds_per_byte = std::max(slowest[1] - slowest[0], 1e-9) / bytes;
  cost.latency_seconds = slowest[0];
  return cost;
}

Result<CallCost> MeasureCallCost(const RunCall& run, const Clock& clock) {
  std::vector<float> data(kProbeElements, 0.0F);
  CostProbe probe;
  probe.data = data.data();
  probe.elements = data.size();
  probe.run = run;
  probe.time = [&](const CollectiveCall& call, int rounds) {
    return TimeByClock(run, clock, call, rounds);
  };
  return MeasureCallCost(probe);
}

std::size_t TuneBucketBytes(const PoolLayout& layout,
                            const std::vector<float>& ready_seconds,
                            std::size_t wire_element_bytes, double share,
                            const CallCost& cost) {
  BackwardProfile profile;
  for (std::size_t i : layout.order()) {
    profile.tensor_elements.push_back(static_cast<std::size_t>(
        share * static_cast<double>(layout.tensor_elements(i))));
  }
  profile.ready_seconds.assign(ready_seconds.begin(), ready_seconds.end());
  return ChooseBucketSize(profile, wire_element_bytes, cost).theta_bytes;
}

}  // namespace gradientflow
