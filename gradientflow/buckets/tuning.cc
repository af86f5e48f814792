#include "gradientflow/buckets/tuning.h"

#include <algorithm>
#include <array>

namespace gradientflow {
namespace {

constexpr std::size_t kSmallElements = 1024;
constexpr std::size_t kLargeElements = std::size_t{512} << 10;
constexpr int kSmallRounds = 9;
constexpr int kLargeRounds = 5;

using Run = std::function<Status(const CollectiveCall&)>;

// Returns the median time of `rounds` allreduces, after two for warm-up.
Result<double> TimeAllreduce(const Run& run, const Clock& clock,
                             std::vector<float>* data, int rounds) {
  std::vector<double> times;
  for (int round = -2; round < rounds; ++round) {
    CollectiveCall call;
    call.output = data->data();
    call.count = data->size();
    const Clock::Time begin = clock.Now();
    GF_RETURN_IF_ERROR(run(call));
    if (round >= 0) times.push_back(Seconds(clock.Now() - begin));
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

}  // namespace

Result<ChannelModel> MeasureChannel(const Run& run, const Clock& clock) {
  std::vector<float> small(kSmallElements, 0.0F);
  std::vector<float> large(kLargeElements, 0.0F);
  Result<double> small_time = TimeAllreduce(run, clock, &small, kSmallRounds);
  if (!small_time.ok()) return small_time.status();
  Result<double> large_time = TimeAllreduce(run, clock, &large, kLargeRounds);
  if (!large_time.ok()) return large_time.status();
  // Every rank uses the times of the slowest.
  std::array<double, 2> slowest = {small_time.value(), large_time.value()};
  CollectiveCall agree;
  agree.output = slowest.data();
  agree.count = slowest.size();
  agree.dtype = agree.wire = DType::kFloat64;
  agree.op = ReduceOp::kMax;
  GF_RETURN_IF_ERROR(run(agree));

  const double bytes = sizeof(float) * double{kLargeElements - kSmallElements};
  ChannelModel channel;
  channel.seconds_per_byte = std::max(slowest[1] - slowest[0], 1e-9) / bytes;
  channel.latency_seconds = slowest[0];
  return channel;
}

std::size_t TuneBucketBytes(const PoolLayout& layout,
                            const std::vector<float>& ready_seconds,
                            std::size_t wire_element_bytes, double share,
                            const ChannelModel& channel) {
  BackwardProfile profile;
  for (std::size_t i : layout.order()) {
    profile.tensor_elements.push_back(static_cast<std::size_t>(
        share * static_cast<double>(layout.tensor_elements(i))));
  }
  profile.ready_seconds.assign(ready_seconds.begin(), ready_seconds.end());
  return ChooseBucketSize(profile, wire_element_bytes, channel).theta_bytes;
}

}  // namespace gradientflow
