#pragma once

#include "tests/cuda_shim/include/cuda_runtime.h"

// float16 as kernels use it: bits in, bits out. Overflow gives an infinity, and
// every NaN becomes the one that a GPU makes, 0x7FFF or 0x7FFFFFFF.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

struct __half {
  unsigned short bits;
};

inline __half __ushort_as_half(unsigned short v) { return {v}; }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }

inline float __half2float(__half v) {
  const unsigned sign = static_cast<unsigned>(v.bits & 0x8000U) << 16;
  const unsigned exponent = v.bits >> 10 & 0x1FU;
  const unsigned mantissa = v.bits & 0x3FFU;
  if (exponent == 0x1F) {
    return __uint_as_float(mantissa != 0 ? 0x7FFFFFFFU : sign | 0x7F800000U);
  }
  if (exponent == 0) {  // Zero or denormal: mantissa units of 2^-24, exact.
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return __uint_as_float(sign | __float_as_uint(value));
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

// To nearest, ties to even.
inline __half __float2half_rn(float v) {
  const unsigned bits = __float_as_uint(v);
  const auto sign = static_cast<unsigned short>(bits >> 16 & 0x8000U);
  const unsigned magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {0x7FFF};
  // 65520 is the middle between the largest half and what would follow it.
  unsigned rounded = 0x7C00;
  if (magnitude < 0x38800000U) {
    // Below 2^-14 the unit is 2^-24; adding 0.5, whose unit that is, rounds.
    const float sum = __uint_as_float(magnitude) + 0.5F;
    rounded = __float_as_uint(sum) - __float_as_uint(0.5F);
  } else if (magnitude < 0x477FF000U) {
    const unsigned odd = magnitude >> 13 & 1U;
    rounded = (magnitude - (112U << 23) + 0xFFFU + odd) >> 13;
  }
  return {static_cast<unsigned short>(sign | rounded)};
}

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
