#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::testing {

// The CPU's kernels, put in the queue that the stream stands for.
const kernels::KernelTable& FakeKernels();
const kernels::ChunkKernelTable& FakeChunkKernels();

}  // namespace gradientflow::testing
