#pragma once

#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/calls.h"
#include "gradientflow/communicator/device_path.h"
#include "gradientflow/communicator/progress.h"

namespace gradientflow {

// All are borrowed.
struct DeviceCostsArgs {
  DevicePath* path = nullptr;
  Calls* calls = nullptr;
  Progress* progress = nullptr;
  Fabric* fabric = nullptr;
  const Clock* clock = nullptr;
};

// Measures what allreduces take on memory of the device, as MeasureCallCost()
// does: by the collective that carries buckets there, on memory that is
// registered as a pool is. All ranks call this together. If NCCL carries them,
// elements are of `pool`, travel as `wire`, and the times are those of the
// device's events between calls that were submitted one after the other, as a
// step's are; so the host's time to submit them does not count. Otherwise the
// host, which moves the bytes, times float32. An error on one rank ends the
// job, since the others wait. Blocks; any thread.
Result<CallCost> MeasureOnDevice(const DeviceCostsArgs& args, DType pool,
                                 DType wire);

}  // namespace gradientflow
