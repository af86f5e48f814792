#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "gradientflow/base/dtype.h"
#include "gradientflow/config/options.h"
#include "gradientflow/config/text_values.h"

// How each kind of field is read from and written as text. Each codec is a type
// with static functions Parse(text, options) and Print(options). For the
// settings table alone.
namespace gradientflow::codecs {

// Stores the value in the field if there is one. Returns whether there is.
template <typename Field, typename Value>
bool Store(Field& field, const std::optional<Value>& value) {
  if (value) field = static_cast<Field>(*value);
  return value.has_value();
}

// An integer in [kMin, kMax].
template <auto kField, std::uint64_t kMin, std::uint64_t kMax>
struct Integer {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseUnsigned(text);
    if (!value || *value < kMin || *value > kMax) return false;
    return Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return std::to_string(options.*kField);
  }
};

// The same, or "auto", which is stored as kAuto.
template <auto kField, std::uint64_t kMin, std::uint64_t kMax, int kAuto>
struct IntegerOrAuto {
  using Plain = Integer<kField, kMin, kMax>;
  static bool Parse(std::string_view text, Options* options) {
    if (Lower(text) != "auto" && text != std::to_string(kAuto)) {
      return Plain::Parse(text, options);
    }
    options->*kField = kAuto;
    return true;
  }
  static std::string Print(const Options& options) {
    return options.*kField == kAuto ? "auto" : Plain::Print(options);
  }
};

// A number of bytes in [kMin, kMax] that is a multiple of kMultiple.
template <auto kField, std::size_t kMin, std::size_t kMax,
          std::size_t kMultiple = 1>
struct Bytes {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseBytes(text);
    if (!value || *value < kMin || *value > kMax) return false;
    return *value % kMultiple == 0 && Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return PrintBytes(options.*kField);
  }
};

// The same, or "auto", which is stored as 0.
template <auto kField, std::size_t kMax>
struct BytesOrKernel {
  static bool Parse(std::string_view text, Options* options) {
    return Bytes<kField, 0, kMax>::Parse(
        Lower(text) == "auto" ? std::string_view("0") : text, options);
  }
  static std::string Print(const Options& options) {
    return options.*kField == 0 ? "auto" : PrintBytes(options.*kField);
  }
};

// "4000-4100", or "any".
template <auto kField>
struct Ports {
  static bool Parse(std::string_view text, Options* options) {
    PortRange& range = options->*kField;
    if (Lower(text) == "any") {
      range = PortRange();
      return true;
    }
    const std::size_t dash = std::min(text.find('-'), text.size());
    const auto first = ParseUnsigned(text.substr(0, dash));
    const auto last =
        ParseUnsigned(text.substr(std::min(dash + 1, text.size())));
    if (!first || !last || *first == 0 || *first > *last || *last > 65535) {
      return false;
    }
    range = {static_cast<std::uint16_t>(*first),
             static_cast<std::uint16_t>(*last)};
    return true;
  }
  static std::string Print(const Options& options) {
    const PortRange& range = options.*kField;
    if (range.first == 0) return "any";
    return std::to_string(range.first) + "-" + std::to_string(range.last);
  }
};

template <auto kField>
struct Boolean {
  static bool Parse(std::string_view text, Options* options) {
    return Store(options->*kField, ParseBool(text));
  }
  static std::string Print(const Options& options) {
    return options.*kField ? "on" : "off";
  }
};

// A number in [0, 1).
template <auto kField>
struct Share {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseFloat(text);
    return value && *value >= 0 && *value < 1 && Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return PrintFloat(options.*kField);
  }
};

template <auto kField>
struct LossScale {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseFloat(text);
    return value && IsLossScale(*value) && Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return PrintFloat(options.*kField);
  }
};

// A number more than 0 and so small that its nanoseconds fit in 63 bits.
template <auto kField>
struct Duration {
  static constexpr double kMaxSeconds = 1e9;
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseDouble(text);
    return value && *value > 0 && *value <= kMaxSeconds &&
           Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return PrintDouble(options.*kField);
  }
};

// One of kNames, in any case; the field is its index.
template <auto kField, const auto& kNames>
struct Choice {
  using Field = std::remove_cvref_t<decltype(Options{}.*kField)>;
  static bool Parse(std::string_view text, Options* options) {
    const std::string word = Lower(text);
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      if (kNames[i] != word) continue;
      options->*kField = static_cast<Field>(i);
      return true;
    }
    return false;
  }
  static std::string Print(const Options& options) {
    const auto i = static_cast<std::size_t>(options.*kField);
    return i < kNames.size() ? std::string(kNames[i]) : std::to_string(i);
  }
};

// A name that kKnows() accepts, in any case.
template <auto kField, bool (*kKnows)(const std::string& name)>
struct Named {
  static bool Parse(std::string_view text, Options* options) {
    std::string name = Lower(text);
    if (!kKnows(name)) return false;
    options->*kField = std::move(name);
    return true;
  }
  static std::string Print(const Options& options) { return options.*kField; }
};

template <auto kField>
struct GradientType {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseDType(Lower(text));
    return value && IsGradientType(*value) && Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return std::string(Name(options.*kField));
  }
};

template <auto kField>
struct MeanOrSum {
  static bool Parse(std::string_view text, Options* options) {
    const auto value = ParseReduceOp(Lower(text));
    return (value == ReduceOp::kMean || value == ReduceOp::kSum) &&
           Store(options->*kField, value);
  }
  static std::string Print(const Options& options) {
    return std::string(Name(options.*kField));
  }
};

// Any text that kAccept() accepts.
template <auto kField, bool (*kAccept)(std::string_view)>
struct Text {
  static bool Parse(std::string_view text, Options* options) {
    if (!kAccept(text)) return false;
    options->*kField = std::string(text);
    return true;
  }
  static std::string Print(const Options& options) { return options.*kField; }
};

}  // namespace gradientflow::codecs
