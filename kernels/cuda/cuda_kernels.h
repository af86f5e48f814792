#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels {

// The kernels on memory of the current CUDA device; streams are cudaStream_t.
// Null when built without CUDA. Having the table says nothing about there
// being a device: gradientflow/device/cuda_device.h does. Lives for ever.
const KernelTable* CudaKernels();
const ChunkKernelTable* CudaChunkKernels();

// `error`: 0 or the cudaError_t of `call`.
struct LoadResult {
  int error;
  const char* call;
};

// Loads all kernels into the current device, and makes their pool of scratch
// memory; thread-safe, and quick the second time. Otherwise CUDA loads each
// kernel at its first launch and may wait then for all that runs on the device:
// for ever, beside a kernel of NCCL that waits for another rank.
LoadResult LoadKernels();

}  // namespace gradientflow::kernels
