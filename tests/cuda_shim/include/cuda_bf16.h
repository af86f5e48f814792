#pragma once

#include "tests/cuda_shim/include/cuda_runtime.h"

// bfloat16 as kernels use it: bits out. Overflow gives an infinity, and every
// NaN becomes the one that a GPU makes, 0x7FFF.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

struct __nv_bfloat16 {
  unsigned short bits;
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }

// To nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const unsigned bits = __float_as_uint(v);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {0x7FFF};
  const unsigned odd = bits >> 16 & 1U;
  return {static_cast<unsigned short>((bits + 0x7FFFU + odd) >> 16)};
}

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
