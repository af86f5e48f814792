#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// Assigns the spans of a trace to rows. Viewers draw the bars of one row as a
// stack of calls, so bars that overlap need rows of their own. A lane has one
// row, and more ("bucket 2") only if several of its spans overlap. Pure.
class TraceRows {
 public:
  struct Row {
    int number = 0;    // Unique; rows of a lane are adjacent.
    std::string name;  // "bucket", "bucket 2".
    bool is_new = false;
  };
  // Works best if spans come in the order of their ends.
  Row Place(const Span& span);

 private:
  // A lane has at most this many rows; beyond that its bars overlap.
  static constexpr int kRowsPerLane = 64;
  struct Lane {
    int number = 0;
    std::vector<Clock::Time> row_ends;
  };
  std::map<std::string, Lane, std::less<>> lanes_;
};

}  // namespace gradientflow
