#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

namespace gradientflow {

// The number that is the whole text, in decimal, without blanks or a leading
// '+'; nothing if it is none or does not fit the type.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

// The same for finite numbers only: no "nan", no "inf".
template <typename Real>
std::optional<Real> ParseFinite(std::string_view text) {
  const std::optional<Real> value = ParseNumber<Real>(text);
  if (!value || !std::isfinite(*value)) return std::nullopt;
  return value;
}

}  // namespace gradientflow
