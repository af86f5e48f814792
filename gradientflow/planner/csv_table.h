#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::planner {

// A table of comma-separated values with a header line; fields are not quoted.
// Lines that are empty or start with # are left out. Columns are found by name.
class CsvTable {
 public:
  // `name` is for messages. kInvalidArgument if a line has more or fewer fields
  // than the header.
  static Result<CsvTable> Parse(std::string_view text, const std::string& name);

  std::size_t rows() const { return rows_.size(); }
  bool Has(const std::string& column) const;
  // kInvalidArgument if there is a column that is none of these.
  Status HasOnly(const std::vector<std::string>& columns) const;
  // The field of a row. What is wrong with it goes to `status`, with line and
  // column, unless that has a problem already. REQUIRES row < rows().
  std::string Text(std::size_t row, const std::string& column,
                   Status* status) const;
  // A number of at least 0; "inf" is one.
  double Number(std::size_t row, const std::string& column,
                Status* status) const;
  // A whole number of at least `least`.
  int Count(std::size_t row, const std::string& column, int least,
            Status* status) const;
  // What a reader finds wrong with a field: kInvalidArgument with line, column
  // and `what`.
  Status Problem(std::size_t row, const std::string& column,
                 const std::string& what) const;

 private:
  struct Row {
    std::size_t line = 0;
    std::vector<std::string> fields;
  };
  std::string name_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

}  // namespace gradientflow::planner
