#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels {

// The kernels on memory of the current CUDA device; streams are cudaStream_t.
// Null when built without CUDA. Having the table says nothing about there
// being a device: gradientflow/device/cuda_device.h does. Lives for ever.
const KernelTable* CudaKernels();
const ChunkKernelTable* CudaChunkKernels();

}  // namespace gradientflow::kernels
