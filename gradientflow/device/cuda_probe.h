#pragma once

#include "gradientflow/device/cuda_facts.h"

namespace gradientflow {

// The facts but for the devices, whose number is in *count; starts CUDA on
// none. A `reason` is there if *count is 0.
CudaFacts ProbeCuda(int* count);

}  // namespace gradientflow
