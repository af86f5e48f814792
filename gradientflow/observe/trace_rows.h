#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// Where each span goes in a trace. Viewers draw the bars of one row as a stack
// of calls, so bars that overlap need rows of their own: a lane is one row,
// and more ("bucket 2") only while it has several things going on. Pure.
class TraceRows {
 public:
  struct Row {
    int number = 0;    // Unique; rows of a lane follow each other.
    std::string name;  // "bucket", "bucket 2".
    bool is_new = false;
  };
  // Spans are best placed in the order of their ends.
  Row Place(const Span& span);

 private:
  // Beyond these rows a lane's bars overlap.
  static constexpr int kRowsPerLane = 64;
  struct Lane {
    int number = 0;
    std::vector<Clock::Time> row_ends;
  };
  std::map<std::string, Lane, std::less<>> lanes_;
};

}  // namespace gradientflow
