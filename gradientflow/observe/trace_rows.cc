#include "gradientflow/observe/trace_rows.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace gradientflow {

TraceRows::Row TraceRows::Place(const Span& span) {
  auto found = lanes_.find(span.lane);
  if (found == lanes_.end()) {
    Lane lane;
    lane.number = static_cast<int>(lanes_.size());
    found = lanes_.emplace(std::string(span.lane), std::move(lane)).first;
  }
  Lane& lane = found->second;
  std::size_t row = 0;
  while (row < lane.row_ends.size() && lane.row_ends[row] > span.begin) ++row;
  const bool full = row == kRowsPerLane;
  if (full) --row;
  const bool is_new = row == lane.row_ends.size();
  if (is_new) lane.row_ends.emplace_back();
  if (is_new || lane.row_ends[row] < span.end) lane.row_ends[row] = span.end;

  Row result;
  result.number = lane.number * kRowsPerLane + static_cast<int>(row);
  result.name = found->first;
  if (row > 0) result.name += " " + std::to_string(row + 1);
  result.is_new = is_new;
  return result;
}

}  // namespace gradientflow
