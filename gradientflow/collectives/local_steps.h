#pragma once

#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment_data.h"
#include "kernels/kernels.h"

namespace gradientflow {

// Runs a step that needs no other rank: kReduce, kReduceMany or kCopy. Runs
// once the messages of its round have ended.
void RunLocalStep(const Step& step, const kernels::CpuKernelTable& kernels,
                  SegmentData* data);

}  // namespace gradientflow
