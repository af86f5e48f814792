#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/types.h"

// All element types, and packs of them: what one thread reads or writes at
// once. A pack has 16 bytes of the widest type in use and as many elements of
// the others, so that the lanes of a warp access neighbouring bytes and one
// instruction touches every 32-byte sector as a whole.
namespace gradientflow::kernels::cuda {

// The type in which arithmetic on T is done, and the conversions.
template <typename T>
struct ComputeOf {
  using Type = T;
};
template <>
struct ComputeOf<Half> {
  using Type = float;
};
template <>
struct ComputeOf<BFloat> {
  using Type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::Type;

template <typename T>
__device__ Compute<T> Widen(T v) {
  return v;
}
template <>
__device__ inline float Widen<Half>(Half v) {
  return ToFloat(v);
}
template <>
__device__ inline float Widen<BFloat>(BFloat v) {
  return ToFloat(v);
}

template <typename T>
__device__ T Narrow(Compute<T> v) {
  return v;
}
template <>
__device__ inline Half Narrow<Half>(float v) {
  return FromFloat<Half>(v);
}
template <>
__device__ inline BFloat Narrow<BFloat>(float v) {
  return FromFloat<BFloat>(v);
}

template <typename T>
__device__ bool IsNonFinite(T) {
  return false;  // Integers.
}
template <>
__device__ inline bool IsNonFinite<float>(float v) {
  return !IsFinite(v);
}
template <>
__device__ inline bool IsNonFinite<double>(double v) {
  return !(v - v == 0);
}
template <>
__device__ inline bool IsNonFinite<Half>(Half v) {
  return (v.bits & 0x7C00U) == 0x7C00U;
}
template <>
__device__ inline bool IsNonFinite<BFloat>(BFloat v) {
  return (v.bits & 0x7F80U) == 0x7F80U;
}

__device__ inline float Abs(float v) {
  return __uint_as_float(__float_as_uint(v) & 0x7FFFFFFFU);
}

template <typename A, typename B>
inline constexpr bool kSame = false;
template <typename A>
inline constexpr bool kSame<A, A> = true;

template <typename A, typename B = A>
inline constexpr int kPackOf =
    static_cast<int>(16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B)));

template <typename T, int kN>
struct Pack {
  T at[kN];
};

template <int kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};

// Elements [0, kN) of `src`, which is a multiple of the pack's bytes. One
// access reads them and marks the cache line as used.
template <int kN, typename T>
__device__ Pack<T, kN> Load(const T* src) {
  if constexpr (kN == 1) {
    return {{*src}};
  } else {
    using Word = typename WordOf<kN * sizeof(T)>::Type;
    union {
      Word word;
      Pack<T, kN> pack;
    } both;
    both.word = __ldcs(reinterpret_cast<const Word*>(src));
    return both.pack;
  }
}

template <typename T, int kN>
__device__ void Store(T* dst, const Pack<T, kN>& pack) {
  if constexpr (kN == 1) {
    *dst = pack.at[0];
  } else {
    using Word = typename WordOf<kN * sizeof(T)>::Type;
    union {
      Word word;
      Pack<T, kN> pack;
    } both;
    both.pack = pack;
    __stcs(reinterpret_cast<Word*>(dst), both.word);
  }
}

// Calls visit(T()) with the type behind one that does not convert to others;
// returns EINVAL for gradient types.
template <typename Visit>
int WithPlainType(DType type, Visit visit) {
  switch (type) {
    case DType::kFloat64:
      return visit(double());
    case DType::kInt8:
      return visit(std::int8_t());
    case DType::kInt32:
      return visit(std::int32_t());
    case DType::kInt64:
      return visit(std::int64_t());
    case DType::kUInt8:
      return visit(std::uint8_t());
    default:
      return EINVAL;
  }
}

}  // namespace gradientflow::kernels::cuda
