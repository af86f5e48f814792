#pragma once

#include "kernels/kernels.h"

// One set of the kernels per instruction set, for cpu/table.cc. The
// vector namespaces carry the names Highway gives them; each kernel's .cc
// file defines its function in both.
namespace gradientflow::kernels {

#define GRADIENTFLOW_DECLARE_KERNELS                         \
  int Convert(const ConvertArgs&, void* stream);             \
  int Accumulate(const AccumulateArgs&, void*);              \
  int ReduceMany(const ReduceManyArgs&, void*);              \
  int Residual(const ResidualArgs&, void* stream);           \
  int L1Norm(const L1NormArgs&, void* stream);               \
  int SumSquares(const SumSquaresArgs&, void*);              \
  int FindNonfinite(const FindNonfiniteArgs&, void* stream); \
  int Sgd(const SgdArgs&, void* stream);

// One element after the other, in the words of kernels.h.
namespace scalar {
GRADIENTFLOW_DECLARE_KERNELS
}  // namespace scalar

// AVX2, FMA and F16C.
namespace N_AVX2 {
GRADIENTFLOW_DECLARE_KERNELS
}  // namespace N_AVX2

// AVX-512 F, BW, DQ and VL.
namespace N_AVX3 {
GRADIENTFLOW_DECLARE_KERNELS
}  // namespace N_AVX3

#undef GRADIENTFLOW_DECLARE_KERNELS

}  // namespace gradientflow::kernels
