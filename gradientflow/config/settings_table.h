#pragma once

#include <span>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"
#include "transports/endpoint.h"

namespace gradientflow {

inline constexpr std::string_view kVariablePrefix = "GRADIENTFLOW_";

// One field of Options, or one of transport_settings. The table of these is the
// only place that knows how a setting is written. The environment, the C API,
// --help, logs and docs/settings.md all use it.
struct Setting {
  std::string_view name;      // As in Options: "bucket_bytes".
  std::string_view section;   // Title of its group.
  std::string_view expected;  // What a valid text is, for errors and tables.
  std::string_view meaning;   // One or two sentences, with the trade-off.
  bool secret = false;        // Masked where other people may read it.
  // How a field of Options is read and written; null in settings of a
  // transport.
  bool (*parse)(std::string_view text, Options* options) = nullptr;
  std::string (*print)(const Options& options) = nullptr;
  // What the transport says of its setting; null in fields of Options.
  const TransportSetting* of_transport = nullptr;

  // Sets the value and returns true. Returns false, and leaves it alone, if
  // `text` is not as expected or out of range.
  bool Parse(std::string_view text, Options* options) const;
  // Returns a text that Parse() turns into the same value.
  std::string Print(const Options& options) const;
  std::string variable() const;  // "GRADIENTFLOW_BUCKET_BYTES".
  // Returns Print(), or "***" if the setting is secret and not the default.
  std::string PrintForLog(const Options& options) const;
};

// All settings, in the order of Options. Static storage.
std::span<const Setting> Settings();

// `name` may have the prefix, and any case. Returns null if there is no such
// setting.
const Setting* FindSetting(std::string_view name);

// Returns the setting whose name is nearest to `name`, for "did you mean".
const Setting& NearestSetting(std::string_view name);

// Returns "LABEL: expected a number ..., got '7'".
std::string BadValueText(std::string_view label, const Setting& setting,
                         std::string_view text);
// Returns "'BUKET_BYTES' is no setting; did you mean bucket_bytes?".
std::string UnknownNameText(std::string_view name);

// Returns kInvalidArgument, and changes nothing, if the name is unknown (the
// error has the nearest known one) or the text is not as expected.
Status SetOption(Options* options, std::string_view name,
                 std::string_view text);
// Returns the current value as text, even if it is secret.
Result<std::string> GetOption(const Options& options, std::string_view name);

}  // namespace gradientflow
