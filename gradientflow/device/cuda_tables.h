#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow {

// The CUDA kernels on one device, whatever device is current for the thread
// that calls: null streams are this device's. They live for ever.
// REQUIRES: built with CUDA; CudaContext::Of(index) was OK.
const kernels::KernelTable& CudaTable(int index);
const kernels::ChunkKernelTable& CudaChunkTable(int index);

}  // namespace gradientflow
