#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

// The elements of the gradient types, and how they become float32 and back;
// packs of them are in pack.cuh. The rounding is that of kernels.h; files here
// are compiled with -fmad=false, so that no product and sum are fused.
namespace gradientflow::kernels::cuda {

// The bits of a float16 and of a bfloat16, as types of their own.
struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

__device__ inline float ToFloat(float v) { return v; }
__device__ inline float ToFloat(Half v) {
  return __half2float(__ushort_as_half(v.bits));
}
__device__ inline float ToFloat(BFloat v) {
  return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
}

template <typename T>
__device__ T FromFloat(float v);
template <>
__device__ inline float FromFloat<float>(float v) {
  return v;
}
template <>
__device__ inline Half FromFloat<Half>(float v) {
  return {__half_as_ushort(__float2half_rn(v))};
}
template <>
__device__ inline BFloat FromFloat<BFloat>(float v) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
}

__device__ inline bool IsFinite(float v) {
  return (__float_as_uint(v) & 0x7F800000U) != 0x7F800000U;
}

// The error of rounding `sum` to `rounded`, or 0 if that is not finite.
__device__ inline float Left(float sum, float rounded) {
  const float left = sum - rounded;
  return IsFinite(left) ? left : 0.0F;
}

// Calls visit(T()) with the type behind a gradient type; returns EINVAL for
// others.
template <typename Visit>
int WithGradientType(DType type, Visit visit) {
  switch (type) {
    case DType::kFloat32:
      return visit(float());
    case DType::kFloat16:
      return visit(Half());
    case DType::kBFloat16:
      return visit(BFloat());
    default:
      return EINVAL;
  }
}

}  // namespace gradientflow::kernels::cuda
