#pragma once

#include <functional>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// Runs some allreduces by `run` (blocking, on every rank alike) and times them:
// 4 KiB for the latency, 2 MiB for the bandwidth. Takes about 10 ms on a fast
// network, 100 ms at 1 Gb/s. The times are those of the slowest rank.
Result<ChannelModel> MeasureChannel(
    const std::function<Status(const CollectiveCall&)>& run,
    const Clock& clock);

// Returns theta from a measured backward pass. `ready_seconds` are by tensor in
// pool order, equal on all ranks. `share` is the part of the pool's elements
// that is sent.
std::size_t TuneBucketBytes(const PoolLayout& layout,
                            const std::vector<float>& ready_seconds,
                            std::size_t wire_element_bytes, double share,
                            const ChannelModel& channel);

}  // namespace gradientflow
