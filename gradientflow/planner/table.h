#pragma once

#include <string>
#include <vector>

namespace gradientflow::planner {

enum class TableFormat { kText, kCsv, kJson };

// Rows of texts and numbers that can be printed in three ways.
class Table {
 public:
  // Columns have the name that CSV and JSON use: with its unit.
  explicit Table(std::vector<std::string> columns);

  // A row is begun, and then filled from left to right.
  Table& Row();
  Table& Text(const std::string& text);
  // A number with this many significant digits; all of them in JSON. Infinity
  // is "inf", and null in JSON.
  Table& Number(double number, int digits = 4);

  // Aligned columns; comma-separated values; a JSON list of objects.
  std::string Print(TableFormat format) const;

 private:
  struct Cell {
    std::string text;
    bool is_number = false;
    double number = 0;
  };
  std::string PrintText() const;
  std::string PrintCsv() const;
  std::string PrintJson() const;

  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace gradientflow::planner
