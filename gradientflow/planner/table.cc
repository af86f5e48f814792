#include "gradientflow/planner/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

namespace gradientflow::planner {

Table::Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

Table& Table::Row() {
  rows_.emplace_back();
  return *this;
}

Table& Table::Text(const std::string& text) {
  rows_.back().push_back({text, false, 0});
  return *this;
}

Table& Table::Number(double number, int digits) {
  std::array<char, 64> text{};
  // Whole numbers in full, others with their digits.
  const bool whole = number == std::floor(number) && std::abs(number) < 1e15;
  if (whole) {
    std::snprintf(text.data(), text.size(), "%.0f", number);
  } else {
    std::snprintf(text.data(), text.size(), "%.*g", digits, number);
  }
  rows_.back().push_back({text.data(), true, number});
  return *this;
}

std::string Table::Print(TableFormat format) const {
  switch (format) {
    case TableFormat::kCsv:
      return PrintCsv();
    case TableFormat::kJson:
      return PrintJson();
    default:
      return PrintText();
  }
}

std::string Table::PrintText() const {
  std::vector<std::size_t> widths;
  for (const std::string& column : columns_) widths.push_back(column.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].text.size());
    }
  }
  std::string out;
  const auto add = [&](const std::string& text, std::size_t width, bool right) {
    const std::string spaces(width - text.size(), ' ');
    out += (out.empty() || out.back() == '\n' ? "" : "  ");
    out += right ? spaces + text : text + spaces;
  };
  const auto end = [&] {
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  };
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const bool right = !rows_.empty() && rows_.front()[i].is_number;
    add(columns_[i], widths[i], right);
  }
  end();
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      add(row[i].text, widths[i], row[i].is_number);
    }
    end();
  }
  return out;
}

std::string Table::PrintCsv() const {
  std::string out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out += (i > 0 ? "," : "") + columns_[i];
  }
  out += '\n';
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string text = row[i].text;
      // The tables that are read back have no quotes.
      std::replace(text.begin(), text.end(), ',', ';');
      out += (i > 0 ? "," : "") + text;
    }
    out += '\n';
  }
  return out;
}

std::string Table::PrintJson() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_number) {
        object[columns_[i]] = row[i].text;
      } else if (std::isfinite(row[i].number)) {
        object[columns_[i]] = row[i].number;
      } else {
        object[columns_[i]] = nullptr;
      }
    }
    list.push_back(object);
  }
  return list.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace gradientflow::planner
