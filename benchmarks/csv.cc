#include "benchmarks/csv.h"

#include <fstream>

namespace gradientflow::benchmarks {
namespace {

std::vector<std::string> Split(std::string_view line) {
  std::vector<std::string> fields;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = line.find(',', begin);
    fields.emplace_back(line.substr(begin, end - begin));
    if (end == std::string_view::npos) return fields;
    begin = end + 1;
  }
}

Status Bad(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, message);
}

}  // namespace

Result<Csv> ReadCsv(const std::string& path,
                    const std::vector<std::string>& columns) {
  std::ifstream file(path);
  if (!file) return Bad(StrCat(path, ": cannot be opened"));
  Csv csv{path, columns, {}};
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    std::vector<std::string> fields = Split(line);
    if (fields.size() != columns.size()) {
      return Bad(StrCat(path, ":", number, ": expected ", columns.size(),
                        " columns, got ", fields.size()));
    }
    if (number > 1) {
      csv.rows.push_back(std::move(fields));
      continue;
    }
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (fields[i] == columns[i]) continue;
      return Bad(StrCat(path, ":1: expected column \"", columns[i],
                        "\", got \"", fields[i], "\""));
    }
  }
  if (!file.eof()) return Bad(StrCat(path, ": cannot be read"));
  if (csv.rows.empty()) return Bad(StrCat(path, ": expected rows, got none"));
  return csv;
}

}  // namespace gradientflow::benchmarks
