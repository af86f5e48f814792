#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/csv_table.h"
#include "gradientflow/planner/predict.h"
#include "gradientflow/planner/usl.h"

// Predictions compared with measured runs.
namespace gradientflow::planner {

// A row of the table "runs" of docs/planner.md.
struct MeasuredRun {
  int ranks = 1;
  int ranks_per_host = 1;
  Exchange exchange;
  double step_seconds = 0;
  std::optional<double> backward_seconds;
  std::optional<double> wait_seconds;
};

// kInvalidArgument names line and column.
Result<std::vector<MeasuredRun>> ReadRuns(const CsvTable& table);
// The runs as `usl` needs them.
Result<std::vector<UslRun>> ReadUslRuns(const CsvTable& table);

struct CheckedRun {
  MeasuredRun run;
  Prediction prediction;
  double error = 0;  // predicted / measured - 1.
  // The term that is furthest off, and by how many seconds too long; "-" if the
  // run does not say: "wait" for the exchange and for the slowest rank, and
  // "own work", of which "backward" is a term of its own if the run has it.
  std::string wrong_term = "-";
  double wrong_seconds = 0;
};

struct CheckReport {
  std::vector<CheckedRun> runs;
  double median_error = 0;  // Of the absolute errors.
  double worst_error = 0;
  // The part of the pairs of runs whose measured speed differs by more than a
  // tenth that was predicted in the right order. 1 without such pairs.
  double ordered_fraction = 1;
};

// Predicts every run. REQUIRES a run.
Result<CheckReport> CheckRuns(const Profile& profile, const Probe& probe,
                              const std::vector<MeasuredRun>& runs,
                              double line_gbps);

}  // namespace gradientflow::planner
