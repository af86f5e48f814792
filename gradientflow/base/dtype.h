#pragma once

#include <optional>
#include <string_view>

#include "kernels/types.h"

namespace gradientflow {

using kernels::DType;
using kernels::IsGradientType;
using kernels::SizeOf;

// "float32", "float16", "bfloat16", "float64", "int8", "int32", "int64".
std::string_view Name(DType type);
std::optional<DType> ParseDType(std::string_view name);

// How a collective combines the ranks' values. kMean divides a sum by the
// number of ranks. The numbers are part of the C API.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kMean = 4,
};
std::string_view Name(ReduceOp op);
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

}  // namespace gradientflow
