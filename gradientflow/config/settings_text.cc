#include "gradientflow/config/settings_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "gradientflow/config/settings_table.h"

namespace gradientflow {
namespace {

constexpr std::string_view kSizes =
    "Sizes are bytes, or binary multiples: 64KB = 64KiB = 64K = 65536, and so "
    "MB, GB, TB.";

constexpr std::size_t kWidth = 80;

// Breaks `text` into indented lines of at most kWidth columns.
std::string Wrap(std::string_view text, std::size_t indent) {
  const std::string margin(indent, ' ');
  std::string lines;
  std::string line;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (!line.empty() && indent + line.size() + 1 + word.size() > kWidth) {
      lines += margin + line + "\n";
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  return lines + margin + line + "\n";
}

std::string DefaultOf(const Setting& setting) {
  const std::string text = setting.Print(Options());
  return text.empty() ? "nothing" : text;
}

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string SettingsHelp() {
  std::string help = Wrap(kSizes, 0);
  std::string_view section;
  for (const Setting& setting : Settings()) {
    if (setting.section != section) {
      section = setting.section;
      help.append("\n").append(section).append(":\n");
    }
    help +=
        "  " + setting.variable() + "  (default: " + DefaultOf(setting) + ")\n";
    help += Wrap("Expects " + std::string(setting.expected) + ".", 6);
    help += Wrap(setting.meaning, 6);
  }
  return help;
}

std::string SettingsMarkdown() {
  std::string table(kSizes);
  table +=
      "\n\n| Variable | Default | Expected | Meaning |\n|---|---|---|---|\n";
  std::string_view section;
  for (const Setting& setting : Settings()) {
    if (setting.section != section) {
      section = setting.section;
      table.append("| **").append(section).append("** | | | |\n");
    }
    table += "| `" + setting.variable() + "` | " + Escape(DefaultOf(setting)) +
             " | " + Escape(setting.expected) + " | " +
             Escape(setting.meaning) + " |\n";
  }
  return table;
}

// All columns are padded to the width of their longest entry, except for the
// last one.
std::string SettingsReport(const LoadedOptions& loaded) {
  std::vector<std::array<std::string, 4>> rows = {
      {"variable", "value", "default", "set by"}};
  for (std::size_t i = 0; i < Settings().size(); ++i) {
    const Setting& setting = Settings()[i];
    std::string value = setting.PrintForLog(loaded.options);
    if (value.empty()) value = "nothing";
    rows.push_back({setting.variable(), value, DefaultOf(setting),
                    loaded.origins[i].ToString()});
  }
  std::array<std::size_t, 4> widths = {};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string report;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      report += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    report += row.back() + "\n";
  }
  return report;
}

std::string ChangedSettings(const Options& options) {
  std::string text;
  for (const Setting& setting : Settings()) {
    if (setting.Print(options) == setting.Print(Options())) continue;
    text.append(setting.name).append("=");
    text.append(setting.PrintForLog(options)).append(" ");
  }
  if (text.empty()) return "all settings default";
  text.back() = ';';
  return text + " all else default";
}

}  // namespace gradientflow
