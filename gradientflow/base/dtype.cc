#include "gradientflow/base/dtype.h"

#include <array>
#include <utility>

namespace gradientflow {
namespace {

constexpr std::array<std::string_view, kernels::kDTypes> kDTypeNames = {
    "float32", "float16", "bfloat16", "float64",
    "int8",    "int32",   "int64",    "uint8"};
constexpr std::array<std::string_view, kReduceOps> kReduceOpNames = {
    "sum", "min", "max", "product", "mean", "bit_and", "bit_or", "bit_xor"};

template <typename Enum, std::size_t N>
std::optional<Enum> Parse(std::string_view name,
                          const std::array<std::string_view, N>& names) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(DType type) {
  const auto i = static_cast<std::size_t>(type);
  return i < kDTypeNames.size() ? kDTypeNames[i] : "unknown dtype";
}

std::optional<DType> ParseDType(std::string_view name) {
  return Parse<DType>(name, kDTypeNames);
}

std::string_view Name(ReduceOp op) {
  const auto i = static_cast<std::size_t>(op);
  return i < kReduceOpNames.size() ? kReduceOpNames[i] : "unknown op";
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  return Parse<ReduceOp>(name, kReduceOpNames);
}

}  // namespace gradientflow
