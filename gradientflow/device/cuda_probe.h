#pragma once

#include "gradientflow/device/cuda_facts.h"

namespace gradientflow {

// Returns all facts except for the list of devices, and their number in *count.
// Starts CUDA on none of them. If *count is 0, `reason` says why.
CudaFacts ProbeCuda(int* count);

}  // namespace gradientflow
