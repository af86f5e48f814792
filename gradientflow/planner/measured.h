#pragma once

#include <string>

// What the files of the planner have in common; docs/planner.md describes them.
namespace gradientflow::planner {

// The version of all of these files. A reader knows no other.
inline constexpr int kFileVersion = 1;

// Who measured a file's numbers, and when.
struct Provenance {
  std::string by;
  std::string at;    // UTC, ISO 8601: "2026-11-24T10:32:05Z".
  std::string note;  // May be empty.
};

// A number over the steps, in the unit of its field.
struct Quartiles {
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
};

// A number over the measurements. `p99` is on the bad side: 99 % of the times
// are at most as long, 99 % of the rates at least as high.
struct Level {
  double p50 = 0;
  double p99 = 0;
};

}  // namespace gradientflow::planner
