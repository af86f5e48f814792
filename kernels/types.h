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
};
inline constexpr int kDTypes = 7;

constexpr std::size_t SizeOf(DType type) {
  switch (type) {
    case DType::kInt8:
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

// How the contributions of the ranks are combined. A mean is a kSum whose
// result is scaled. The numbers are part of the C API.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
};
inline constexpr int kReduceOps = 4;

}  // namespace gradientflow::kernels
