#include "benchmarks/training/report.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace gradientflow::benchmarks {

Summary Summarise(const std::string& name,
                  const std::vector<std::vector<TrainingResult>>& runs) {
  Summary summary;
  summary.name = name;
  summary.ranks = static_cast<int>(runs[0].size());
  const auto seeds = static_cast<double>(runs.size());
  double squares = 0;
  for (const auto& ranks : runs) {
    // Loss and accuracy belong to the weights, which are the same everywhere.
    summary.train_loss += ranks[0].train_loss / seeds;
    summary.accuracy += ranks[0].test_accuracy / seeds;
    for (const TrainingResult& result : ranks) {
      const double share = seeds * static_cast<double>(ranks.size());
      summary.bytes_per_step += result.bytes_per_step / share;
      summary.seconds += result.seconds / share;
      summary.identical = summary.identical && result.identical;
    }
  }
  for (const auto& ranks : runs) {
    const double off = ranks[0].test_accuracy - summary.accuracy;
    squares += off * off;
  }
  if (runs.size() > 1) summary.accuracy_sd = std::sqrt(squares / (seeds - 1));
  return summary;
}

std::string SummaryHeader() {
  return "configuration      ranks  train loss  test accuracy %  vs dense"
         "  bytes/step/rank   saving  seconds  weights\n";
}

std::string SummaryLine(const Summary& summary, const Summary& base) {
  std::array<char, 32> saving{"-"};
  if (summary.bytes_per_step > 0 && base.bytes_per_step > 0) {
    std::snprintf(saving.data(), saving.size(), "%.1fx",
                  base.bytes_per_step / summary.bytes_per_step);
  }
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(),
                "%-17s  %5d  %10.5f  %8.2f +- %4.2f  %+8.2f  %15.0f  %7s"
                "  %7.2f  %s\n",
                summary.name.c_str(), summary.ranks, summary.train_loss,
                100 * summary.accuracy, 100 * summary.accuracy_sd,
                100 * (summary.accuracy - base.accuracy),
                summary.bytes_per_step, saving.data(), summary.seconds,
                summary.ranks == 1  ? "one copy"
                : summary.identical ? "identical"
                                    : "DIFFERENT");
  return line.data();
}

}  // namespace gradientflow::benchmarks
