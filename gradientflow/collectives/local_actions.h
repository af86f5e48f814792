#pragma once

#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment_data.h"
#include "kernels/kernels.h"

namespace gradientflow {

// Runs an action that needs no other rank: kReduce, kReduceMany or kCopy. Runs
// once the messages of its round have ended.
void RunLocalAction(const Action& action,
                    const kernels::CpuKernelTable& kernels, SegmentData* data);

}  // namespace gradientflow
