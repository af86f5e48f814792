#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::testing {

// The CPU's kernels, run in the queue of the stream.
const kernels::KernelTable& FakeKernels();
const kernels::ChunkKernelTable& FakeChunkKernels();

}  // namespace gradientflow::testing
