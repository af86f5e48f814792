#pragma once

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/types.h"

// The element types of the CPU kernels, one element at a time, and how a DType
// selects a template. The scalar reference and the entry points of the vector
// kernels share this header, so nothing in it depends on the instruction set.
namespace gradientflow::kernels {

struct Float16 {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

inline constexpr std::uint32_t kFloatAbs = 0x7FFFFFFF;
inline constexpr std::uint32_t kFloatInf = 0x7F800000;

// binary16 -> binary32, exact. A NaN becomes quiet, as with F16C.
inline float ToFloat(Float16 half) {
  const std::uint32_t sign = std::uint32_t{half.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (half.bits >> 10) & 0x1F;
  const std::uint32_t mantissa = half.bits & 0x3FF;
  if (exponent == 0) {  // Zero or denormal: mantissa * 2^-24.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | kFloatInf | quiet | mantissa << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

inline float ToFloat(float value) { return value; }

// `bits` >> `shift`, rounded to nearest, ties to even.
inline std::uint32_t ShiftRightRounded(std::uint32_t bits, int shift) {
  const std::uint32_t odd = (bits >> shift) & 1;
  return (bits + ((std::uint32_t{1} << (shift - 1)) - 1) + odd) >> shift;
}

template <class T>
T FromFloat(float value);

template <>
inline float FromFloat<float>(float value) {
  return value;
}

template <>
inline Float16 FromFloat<Float16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kFloatAbs;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t half;
  if (magnitude > kFloatInf) {  // NaN: keep what fits of the payload.
    half = 0x7E00 | ((magnitude >> 13) & 0x3FF);
  } else if (exponent < 102) {  // Below half of the smallest denormal.
    half = 0;
  } else if (exponent < 113) {  // Denormal: the implicit one becomes explicit.
    const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    half = ShiftRightRounded(mantissa, static_cast<int>(126 - exponent));
  } else {  // A carry out of the mantissa steps the exponent, up to infinity.
    half = ShiftRightRounded(magnitude - (112u << 23), 13);
    if (half > 0x7C00) half = 0x7C00;
  }
  return Float16{static_cast<std::uint16_t>((bits >> 16 & 0x8000) | half)};
}

template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kFloatAbs) > kFloatInf) {
    return BFloat16{static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  }
  return BFloat16{static_cast<std::uint16_t>(ShiftRightRounded(bits, 16))};
}

template <class T>
bool IsNonFinite(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else if constexpr (std::is_same_v<T, double>) {
    return !std::isfinite(value);
  } else {
    return !std::isfinite(ToFloat(value));
  }
}

// The bits of the smallest float32 magnitude that rounds to no finite T.
template <class T>
inline constexpr std::uint32_t kFirstNonFinite = kFloatInf;
template <>
inline constexpr std::uint32_t kFirstNonFinite<Float16> = 0x477FF000;  // 65520
template <>
inline constexpr std::uint32_t kFirstNonFinite<BFloat16> = 0x7F7F8000;

template <class T>
struct TypeTag {
  using Type = T;
};

// The result of a call whose Args have types or counts that are not allowed.
inline constexpr int kBadArgs = EINVAL;

// Calls f(TypeTag<T>()) for the gradient type `type`; kBadArgs for another
// type.
template <class F>
int VisitGradientType(DType type, F f) {
  switch (type) {
    case DType::kFloat32:
      return f(TypeTag<float>());
    case DType::kFloat16:
      return f(TypeTag<Float16>());
    case DType::kBFloat16:
      return f(TypeTag<BFloat16>());
    default:
      return kBadArgs;
  }
}

// Calls f(TypeTag<T>()) for the other types, which do not convert to each
// other.
template <class F>
int VisitPlainType(DType type, F f) {
  switch (type) {
    case DType::kFloat64:
      return f(TypeTag<double>());
    case DType::kInt8:
      return f(TypeTag<std::int8_t>());
    case DType::kInt32:
      return f(TypeTag<std::int32_t>());
    case DType::kInt64:
      return f(TypeTag<std::int64_t>());
    case DType::kUInt8:
      return f(TypeTag<std::uint8_t>());
    default:
      return kBadArgs;
  }
}

}  // namespace gradientflow::kernels
