#pragma once

#include <functional>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/cost_model.h"

namespace gradientflow {

// What the links of this job do, as measured; equal on all ranks.
struct MeasuredCosts {
  ChannelModel channel;  // Of a whole allreduce.
  // Of its parts, for choosing algorithms. Inside a host as is typical, not
  // measured: hosts differ less than busy cores make measurements differ, and
  // the same job on one host chooses the same, and so rounds the same, in every
  // run.
  CostModel model;
};

// Runs some allreduces by `run` (blocking, on every rank alike) and times
// them: 4 KiB for the latency, 2 MiB for the bandwidth. Some 10 ms on a fast
// network, 100 ms at 1 Gb/s.
Result<MeasuredCosts> MeasureCosts(
    int size, const std::function<Status(const CollectiveCall&)>& run,
    const Clock& clock);

// theta from what backward was seen to do. `ready_seconds`: by tensor in pool
// order, equal on all ranks. `share`: of the pool's elements that are sent.
std::size_t TuneBucketBytes(const PoolLayout& layout,
                            const std::vector<float>& ready_seconds,
                            std::size_t wire_element_bytes, double share,
                            const ChannelModel& channel);

}  // namespace gradientflow
