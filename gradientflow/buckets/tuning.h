#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/measure.h"

namespace gradientflow {

// All ranks make these calls together, with and without a device: the number of
// elements that measure the bandwidth, and the number of calls before those
// that count, because the first ones are slower.
inline constexpr std::size_t kProbeElements = std::size_t{512} << 10;
inline constexpr int kWarmUpRounds = 2;

// Returns the seconds that each of `rounds` calls took, which come after
// kWarmUpRounds others.
Result<std::vector<double>> TimeByClock(const RunCall& run, const Clock& clock,
                                        const CollectiveCall& call, int rounds);

// What is measured, and how. All ranks have the same types and elements.
struct CostProbe {
  void* data = nullptr;  // Borrowed.
  std::size_t elements = 0;
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;
  // As TimeByClock() does.
  std::function<Result<std::vector<double>>(CollectiveCall call, int rounds)>
      time;
  RunCall run;  // For calls on host memory.
};

// Times allreduces of 1 Ki elements for the latency, and of probe.elements for
// the bandwidth, which is in bytes of the wire. The times are those of the
// slowest rank.
Result<CallCost> MeasureCallCost(const CostProbe& probe);

// The same for kProbeElements of float32 in host memory. Takes about 10 ms on a
// fast network, 100 ms at 1 Gb/s.
Result<CallCost> MeasureCallCost(const RunCall& run, const Clock& clock);

// Returns theta from a measured backward pass. `ready_seconds` are by tensor in
// pool order, equal on all ranks. `share` is the part of the pool's elements
// that is sent.
std::size_t TuneBucketBytes(const PoolLayout& layout,
                            const std::vector<float>& ready_seconds,
                            std::size_t wire_element_bytes, double share,
                            const CallCost& cost);

}  // namespace gradientflow
