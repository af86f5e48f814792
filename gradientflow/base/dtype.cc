#include "gradientflow/base/dtype.h"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace gradientflow {
namespace {

constexpr std::array<std::string_view, kReduceOps> kReduceOpNames = {
    "sum", "min", "max", "product", "mean", "bit_and", "bit_or", "bit_xor"};

}  // namespace

std::string_view Name(DType type) {
  return kernels::IsDType(type) ? TraitsOf(type).name : "unknown dtype";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const kernels::DTypeTraits& traits : kernels::kDTypeTraits) {
    if (traits.name == name) return traits.type;
  }
  return std::nullopt;
}

std::optional<DType> ParseGradientType(std::string_view name) {
  const std::optional<DType> type = ParseDType(name);
  return type && IsGradientType(*type) ? type : std::nullopt;
}

std::string_view GradientTypeNames() {
  static const std::string names = [] {
    std::vector<std::string_view> all;
    for (const kernels::DTypeTraits& traits : kernels::kDTypeTraits) {
      if (traits.is_gradient) all.push_back(traits.name);
    }
    std::string text(all.front());
    for (std::size_t i = 1; i < all.size(); ++i) {
      text += i + 1 < all.size() ? ", " : " or ";
      text += all[i];
    }
    return text;
  }();
  return names;
}

std::string_view Name(ReduceOp op) {
  const auto i = static_cast<std::size_t>(op);
  return i < kReduceOpNames.size() ? kReduceOpNames[i] : "unknown op";
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  for (std::size_t i = 0; i < kReduceOpNames.size(); ++i) {
    if (kReduceOpNames[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

}  // namespace gradientflow
