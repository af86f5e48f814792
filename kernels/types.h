#pragma once

#include <cstddef>
#include <cstdint>

namespace gradientflow::kernels {

// The element types of pools, wires and collectives. The numbers are part of
// the wire format and of the C API: never renumber.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,   // IEEE 754 binary16.
  kBFloat16 = 2,  // The upper half of a float32.
  kFloat64 = 3,
  kInt8 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUInt8 = 7,
};
inline constexpr int kDTypes = 8;

constexpr std::size_t SizeOf(DType type) {
  switch (type) {
    case DType::kInt8:
    case DType::kUInt8:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

// Types a gradient pool or its wire may have.
constexpr bool IsGradientType(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat16 ||
         type == DType::kBFloat16;
}

constexpr bool IsFloat(DType type) {
  return IsGradientType(type) || type == DType::kFloat64;
}

// How the contributions of the ranks are combined. The numbers are part of the
// C API, which has a mean as 4: here, a kSum whose result is scaled.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kBitAnd = 5,  // On integers only, like the next two.
  kBitOr = 6,
  kBitXor = 7,
};

// Whether `op` is one of the above and combines elements of `type`.
constexpr bool Combines(ReduceOp op, DType type) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !IsFloat(type);
  }
  return false;
}

}  // namespace gradientflow::kernels
