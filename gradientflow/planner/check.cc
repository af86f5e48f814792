#include "gradientflow/planner/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/quantile.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/bucket_size.h"

namespace gradientflow::planner {
namespace {

constexpr double kDiffer = 1.1;

std::string At(const CsvTable& table, std::size_t row, const char* column,
               const char* otherwise, Status* status) {
  if (!table.Has(column)) return otherwise;
  return table.Text(row, column, status);
}

Exchange ReadExchange(const CsvTable& table, std::size_t row, Status* status) {
  Exchange exchange;
  const std::string mode = table.Text(row, "mode", status);
  const std::string wire = table.Text(row, "wire", status);
  const std::string overlap = At(table, row, "overlap", "1", status);
  const std::string bucket = table.Text(row, "bucket_bytes", status);
  if (!status->ok()) return exchange;
  const auto refuse = [&](const char* column, std::string_view expected,
                          const std::string& seen) {
    *status = {StatusCode::kInvalidArgument,
               StrCat("row ", row + 1, ": ", column, ": expected ", expected,
                      ", seen ", seen)};
  };
  if (mode != "dense" && mode != "csc") refuse("mode", "dense or csc", mode);
  const std::optional<DType> type = ParseGradientType(wire);
  if (!type) refuse("wire", GradientTypeNames(), wire);
  if (overlap != "0" && overlap != "1") refuse("overlap", "0 or 1", overlap);
  exchange.csc = mode == "csc";
  exchange.wire_element_bytes = SizeOf(type.value_or(DType::kFloat32));
  exchange.overlap = overlap == "1";
  if (table.Has("sparsity") && exchange.csc) {
    exchange.sparsity = table.Number(row, "sparsity", status);
    if (exchange.sparsity >= 1) refuse("sparsity", "less than 1", "1 or more");
  }
  if (bucket == "auto" || !status->ok()) return exchange;
  const double bytes = table.Number(row, "bucket_bytes", status);
  exchange.theta_bytes =
      bytes < 1e18 ? static_cast<std::size_t>(bytes) : kInfiniteTheta;
  return exchange;
}

// A wait is for the exchange and for the slowest rank. Own work is all else of
// the step, and calls make backward longer.
void FindWrongTerm(const Profile& profile, CheckedRun* checked) {
  const MeasuredRun& run = checked->run;
  if (!run.wait_seconds) return;
  const StepTerms& terms = checked->prediction.step.terms;
  const double waited = terms.latency + terms.bytes + terms.csc + terms.slowest;
  double own = terms.step - waited - (run.step_seconds - *run.wait_seconds);
  double backward = 0;
  if (run.backward_seconds) {
    backward =
        profile.backward_seconds.median + terms.host - *run.backward_seconds;
    own -= backward;
  }
  checked->wrong_term = "wait";
  checked->wrong_seconds = waited - *run.wait_seconds;
  for (const auto& [name, seconds] :
       {std::pair{"own work", own}, {"backward", backward}}) {
    if (std::abs(seconds) <= std::abs(checked->wrong_seconds)) continue;
    checked->wrong_term = name;
    checked->wrong_seconds = seconds;
  }
}

double OrderedFraction(const std::vector<CheckedRun>& runs) {
  int pairs = 0;
  int right = 0;
  for (const CheckedRun& a : runs) {
    for (const CheckedRun& b : runs) {
      // Runs of as many ranks have as many samples in a step.
      if (a.run.ranks != b.run.ranks) continue;
      if (a.run.step_seconds <= b.run.step_seconds * kDiffer) continue;
      ++pairs;
      if (a.prediction.step.terms.step > b.prediction.step.terms.step) ++right;
    }
  }
  return pairs > 0 ? static_cast<double>(right) / pairs : 1;
}

}  // namespace

Result<std::vector<MeasuredRun>> ReadRuns(const CsvTable& table) {
  std::vector<MeasuredRun> runs;
  Status status;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    MeasuredRun run;
    run.ranks = table.Count(row, "ranks", 1, &status);
    if (table.Has("ranks_per_host")) {
      run.ranks_per_host = table.Count(row, "ranks_per_host", 1, &status);
    }
    run.exchange = ReadExchange(table, row, &status);
    run.step_seconds = table.Number(row, "step_seconds", &status);
    if (table.Has("backward_seconds")) {
      run.backward_seconds = table.Number(row, "backward_seconds", &status);
    }
    if (table.Has("wait_seconds")) {
      run.wait_seconds = table.Number(row, "wait_seconds", &status);
    }
    GF_RETURN_IF_ERROR(status);
    if (run.step_seconds == 0 || std::isinf(run.step_seconds)) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("row ", row + 1, ": step_seconds: expected a number above 0"));
    }
    runs.push_back(run);
  }
  if (!runs.empty()) return runs;
  return Status(StatusCode::kInvalidArgument, "there are no runs");
}

Result<std::vector<UslRun>> ReadUslRuns(const CsvTable& table) {
  std::vector<UslRun> runs;
  Status status;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    runs.push_back({static_cast<double>(table.Count(row, "ranks", 1, &status)),
                    table.Number(row, "samples_per_second", &status)});
  }
  GF_RETURN_IF_ERROR(status);
  return runs;
}

Result<CheckReport> CheckRuns(const Profile& profile, const Probe& probe,
                              const std::vector<MeasuredRun>& runs,
                              double line_gbps) {
  CheckReport report;
  std::vector<double> errors;
  for (const MeasuredRun& run : runs) {
    PredictOptions options;
    options.ranks = {run.ranks};
    options.ranks_per_host = run.ranks_per_host;
    options.line_gbps = line_gbps;
    options.exchanges = {run.exchange};
    auto predicted = Predict(profile, probe, options);
    if (!predicted.ok()) return predicted.status();
    CheckedRun checked;
    checked.run = run;
    checked.prediction = std::move(predicted.value().front());
    checked.error = checked.prediction.step.terms.step / run.step_seconds - 1;
    FindWrongTerm(profile, &checked);
    errors.push_back(std::abs(checked.error));
    report.runs.push_back(std::move(checked));
  }
  report.median_error = Quantile(errors, 0.5);
  report.worst_error = *std::max_element(errors.begin(), errors.end());
  report.ordered_fraction = OrderedFraction(report.runs);
  return report;
}

}  // namespace gradientflow::planner
