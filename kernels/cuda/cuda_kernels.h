#pragma once

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels {

// The kernels on memory of the current CUDA device; streams are cudaStream_t.
// Null in a build without CUDA. A table does not mean that there is a device:
// gradientflow/device/cuda_device.h tells. Never destroyed.
const KernelTable* CudaKernels();
const ChunkKernelTable* CudaChunkKernels();

// `error`: 0 or the cudaError_t of `call`.
struct LoadResult {
  int error;
  const char* call;
};

// Loads all kernels into the current device, and makes their pool of scratch
// memory. Thread-safe, and quick the second time. Otherwise CUDA would load
// each kernel at its first launch, and may then wait for all work on the
// device: for ever, if an NCCL kernel there waits for another rank.
LoadResult LoadKernels();

}  // namespace gradientflow::kernels
