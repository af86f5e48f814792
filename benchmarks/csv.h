#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {

// A comma-separated table without quoting, as the benchmarks' data are.
struct Csv {
  std::string path;  // For messages.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // Each columns.size() long.
};

// Reads `path`; the first line must be exactly `columns`, every other as long.
// kInvalidArgument names file and line, what was expected and what was seen.
Result<Csv> ReadCsv(const std::string& path,
                    const std::vector<std::string>& columns);

// The number in row `row` (from 0), column `column`, which must lie within
// [low, high]; kInvalidArgument names the place otherwise.
template <typename T>
Result<T> NumberAt(const Csv& csv, std::size_t row, std::size_t column, T low,
                   T high) {
  const std::string& text = csv.rows[row][column];
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end && value >= low && value <= high) {
    return value;
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat(csv.path, ":", row + 2, ": ", csv.columns[column],
                       ": expected a number from ", low, " to ", high,
                       ", got \"", text, "\""));
}

}  // namespace gradientflow::benchmarks
