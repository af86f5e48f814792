#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/operation.h"

namespace gradientflow {

// Where the passes around a reduction run. All work goes onto the stream.
struct PassTarget {
  const Device* device;
  Stream* stream;
  std::byte* staging;  // Of the device, for plan.staged.
  int rank;
};

// Before NCCL: zeroes the verdict, and packs what is staged.
Status RunBefore(const NcclOperation& operation, const PassTarget& target);

// After NCCL: plan.after, and the verdict's copy to the host.
Status RunAfter(const NcclOperation& operation, const PassTarget& target);

// What the verdict says; true only after slot->end, on a call that looks.
bool FoundNonfinite(const NcclOperation& operation);

}  // namespace gradientflow
