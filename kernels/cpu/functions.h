#pragma once

#include "kernels/kernels.h"

// One set of kernels per instruction set, for cpu/table.cc. The vector
// namespaces have the names that Highway gives them; the .cc file of each
// kernel defines its function in both.
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

// The scalar reference: one element after the other, as kernels.h words it.
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
