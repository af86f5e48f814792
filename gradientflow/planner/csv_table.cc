#include "gradientflow/planner/csv_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {
namespace {

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return std::string(
      text.substr(first, text.find_last_not_of(kSpaces) - first + 1));
}

std::vector<std::string> Split(std::string_view line) {
  std::vector<std::string> fields;
  while (true) {
    const auto comma = line.find(',');
    fields.push_back(Trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

Result<CsvTable> CsvTable::Parse(std::string_view text,
                                 const std::string& name) {
  CsvTable table;
  table.name_ = name;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string line = Trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields = Split(line);
    if (table.columns_.empty()) {
      table.columns_ = std::move(fields);
      continue;
    }
    if (fields.size() != table.columns_.size()) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat(name, ":", number, ": expected ", table.columns_.size(),
                 " fields, seen ", fields.size()));
    }
    table.rows_.push_back({number, std::move(fields)});
  }
  if (table.columns_.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(name, ": there is no header line"));
  }
  return table;
}

bool CsvTable::Has(const std::string& column) const {
  return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

Status CsvTable::HasOnly(const std::vector<std::string>& columns) const {
  for (const std::string& column : columns_) {
    if (std::find(columns.begin(), columns.end(), column) != columns.end()) {
      continue;
    }
    return {StatusCode::kInvalidArgument,
            StrCat(name_, ": ", column, ": no such column")};
  }
  return {};
}

Status CsvTable::Problem(std::size_t row, const std::string& column,
                         const std::string& what) const {
  return {StatusCode::kInvalidArgument,
          StrCat(name_, ":", rows_[row].line, ": ", column, ": ", what)};
}

std::string CsvTable::Text(std::size_t row, const std::string& column,
                           Status* status) const {
  const auto at = std::find(columns_.begin(), columns_.end(), column);
  if (at != columns_.end()) {
    return rows_[row].fields[static_cast<std::size_t>(at - columns_.begin())];
  }
  if (status->ok()) {
    *status = {StatusCode::kInvalidArgument,
               StrCat(name_, ": there is no column ", column)};
  }
  return {};
}

double CsvTable::Number(std::size_t row, const std::string& column,
                        Status* status) const {
  const std::string text = Text(row, column, status);
  if (!status->ok()) return 0;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && number >= 0) return number;
  *status = Problem(row, column,
                    StrCat("expected a number of at least 0, seen ", text));
  return 0;
}

int CsvTable::Count(std::size_t row, const std::string& column, int least,
                    Status* status) const {
  const double number = Number(row, column, status);
  if (!status->ok()) return least;
  if (number == std::floor(number) && number >= least &&
      number <= std::numeric_limits<int>::max()) {
    return static_cast<int>(number);
  }
  *status = Problem(
      row, column,
      StrCat("expected a whole number of at least ", least, ", seen ", number));
  return least;
}

}  // namespace gradientflow::planner
