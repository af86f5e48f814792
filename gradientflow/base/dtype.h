#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/types.h"

namespace gradientflow {

using kernels::DType;
using kernels::IsFloat;
using kernels::IsGradientType;
using kernels::SizeOf;
using kernels::TraitsOf;

// The name in kernels::kDTypeTraits, or "unknown dtype".
std::string_view Name(DType type);
std::optional<DType> ParseDType(std::string_view name);
// The same, but only for types for which IsGradientType() holds.
std::optional<DType> ParseGradientType(std::string_view name);
// "float32, float16 or bfloat16": the types that IsGradientType(). Static
// storage.
std::string_view GradientTypeNames();

// How a collective combines the values of the ranks. kMean divides a sum by the
// number of ranks and takes floats only; the bitwise operations take integers
// only. The numbers are part of the C API, and equal those of
// kernels::ReduceOp.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kMean = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
};
inline constexpr int kReduceOps = 8;

constexpr bool IsBitwise(ReduceOp op) { return op >= ReduceOp::kBitAnd; }

// "sum", "min", "max", "product", "mean", "bit_and", "bit_or", "bit_xor".
std::string_view Name(ReduceOp op);
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

}  // namespace gradientflow
