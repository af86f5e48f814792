#pragma once

#include <span>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow {

inline constexpr std::string_view kVariablePrefix = "GRADIENTFLOW_";

// One field of Options. The table of these is the only place that knows how a
// setting is written: the environment, the C API, --help, logs and
// docs/settings.md all come from it.
struct Setting {
  std::string_view name;      // The field: "bucket_bytes".
  std::string_view section;   // Title of its group.
  std::string_view expected;  // What a valid text is, for errors and tables.
  std::string_view meaning;   // One sentence or two, with the trade-off.
  bool secret = false;        // Masked wherever a person may read along.
  // Sets the field and returns true; or leaves it alone and returns false if
  // `text` is not as expected, range included.
  bool (*parse)(std::string_view text, Options* options) = nullptr;
  // As parse() takes it; round trips.
  std::string (*print)(const Options& options) = nullptr;

  std::string variable() const;  // "GRADIENTFLOW_BUCKET_BYTES".
  // print(), or "***" if it is secret and not the default.
  std::string PrintForLog(const Options& options) const;
};

// In the order of Options. Static storage.
std::span<const Setting> Settings();

// `name` with or without the prefix, any case. Null if there is none.
const Setting* FindSetting(std::string_view name);

// The setting whose name is nearest to `name`: for "did you mean".
const Setting& NearestSetting(std::string_view name);

// "GRADIENTFLOW_SPARSITY: expected a number ..., got '7'": `label` first.
std::string BadValueText(std::string_view label, const Setting& setting,
                         std::string_view text);
// "'BUKET_BYTES' is no setting; did you mean BUCKET_BYTES?"
std::string UnknownNameText(std::string_view name);

// kInvalidArgument, and no change, if the name is unknown (with the nearest
// known one) or the text is not as expected.
Status SetOption(Options* options, std::string_view name,
                 std::string_view text);
// The present value as text, secrets included.
Result<std::string> GetOption(const Options& options, std::string_view name);

}  // namespace gradientflow
