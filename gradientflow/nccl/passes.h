#pragma once

#include <cstddef>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/operation.h"

namespace gradientflow {

// Where the passes around a reduction run. All work is submitted to the stream.
struct PassTarget {
  const Device* device;
  Stream* stream;
  std::byte* staging;  // Device memory, for plan.staged.
  int rank;
};

// Runs before NCCL: zeroes the finding, and packs what is staged.
Status RunBefore(const NcclOperation& operation, const PassTarget& target);

// Runs after NCCL: plan.after, and the copy of the finding to the host.
Status RunAfter(const NcclOperation& operation, const PassTarget& target);

// Returns what was found. Meaningful only after slot->end, for a call
// with plan.look.
bool FoundNonfinite(const NcclOperation& operation);

}  // namespace gradientflow
