#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace gradientflow::kernels {

// The element types of pools, wires and collectives. The numbers are part of
// the wire format and of the C API: they never change.
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

// The facts about a type, apart from how to compute with it.
struct DTypeTraits {
  DType type;
  std::string_view name;  // As settings and reports spell it, and PyTorch.
  int bits;               // Per element, in memory and on the wire.
  bool is_float;
  // A pool and its wire may have the type. Such types convert to each other by
  // way of float32.
  bool is_gradient;
  // Sums in the type are coarse, and may leave its range. Where partial sums
  // are stored or travel in it, a mean is scaled before the sum and not after
  // it, and reduces prefer algorithms that have none.
  bool narrow_sums;
  int nccl;  // ncclDataType_t.
};

// One row per type, in the order of their numbers.
inline constexpr DTypeTraits kDTypeTraits[] = {
    // type, name, bits, is_float, is_gradient, narrow_sums, nccl
    {DType::kFloat32, "float32", 32, true, true, false, 7},
    {DType::kFloat16, "float16", 16, true, true, true, 6},
    {DType::kBFloat16, "bfloat16", 16, true, true, true, 9},
    {DType::kFloat64, "float64", 64, true, false, false, 8},
    {DType::kInt8, "int8", 8, false, false, false, 0},
    {DType::kInt32, "int32", 32, false, false, false, 2},
    {DType::kInt64, "int64", 64, false, false, false, 4},
    {DType::kUInt8, "uint8", 8, false, false, false, 1},
};
inline constexpr int kDTypes = static_cast<int>(std::size(kDTypeTraits));

// REQUIRES: `type` is in the table.
constexpr const DTypeTraits& TraitsOf(DType type) {
  return kDTypeTraits[static_cast<std::size_t>(type)];
}

constexpr bool IsDType(DType type) { return static_cast<int>(type) < kDTypes; }

// Bytes of an element; 0 if `type` is no type.
constexpr std::size_t SizeOf(DType type) {
  return IsDType(type) ? static_cast<std::size_t>(TraitsOf(type).bits) / 8 : 0;
}

// Whether a gradient pool or its wire may have the type.
constexpr bool IsGradientType(DType type) {
  return IsDType(type) && TraitsOf(type).is_gradient;
}

constexpr bool IsFloat(DType type) {
  return IsDType(type) && TraitsOf(type).is_float;
}

// How the contributions of the ranks are combined. The numbers are part of the
// C API, which also has a mean as 4: here, a mean is a kSum whose result is
// scaled.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kBitAnd = 5,  // On integers only, like the next two.
  kBitOr = 6,
  kBitXor = 7,
};

// Whether `op` is one of these and combines elements of `type`.
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
