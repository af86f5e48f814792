#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow {

// The CUDA kernels on one device, whichever device is current for the calling
// thread; null streams are those of this device. They live for ever.
// REQUIRES: built with CUDA, and CudaContext::Of(index) was OK.
const kernels::KernelTable& CudaTable(int index);
const kernels::ChunkKernelTable& CudaChunkTable(int index);

}  // namespace gradientflow
