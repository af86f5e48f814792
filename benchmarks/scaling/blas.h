#pragma once

#include <memory>

#include "benchmarks/scaling/gemm_plan.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// float16 matrices of a device, columns one after the other, without gaps.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

// Matrix products on one stream of one device, which is current for the calling
// thread in all calls (Device::RunCurrent()). NOT thread-safe.
class Blas {
 public:
  virtual ~Blas() = default;
  // C = A B, summed in float32. Returns at once: the work is the stream's.
  virtual Status Multiply(const Gemm& gemm, const GemmOperands& operands) = 0;
};

// cuBLAS, on `stream` (a cudaStream_t). kUnimplemented, with the names tried,
// if the loader finds no libcublas.
Result<std::unique_ptr<Blas>> OpenCublas(void* stream);

}  // namespace gradientflow::benchmarks
