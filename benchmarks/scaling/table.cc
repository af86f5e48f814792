#include "benchmarks/scaling/table.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "gradientflow/config/options.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  std::array<char, 256> text{};
  va_list args;
  va_start(args, format);
  std::vsnprintf(text.data(), text.size(), format, args);
  va_end(args);
  return text.data();
}

std::string Bytes(double bytes) {
  if (bytes >= static_cast<double>(kAutoBytes)) return "all";
  if (bytes >= 1048576) return Format("%.1fMB", bytes / 1048576);
  if (bytes >= 1024) return Format("%.0fKB", bytes / 1024);
  return Format("%.0f", bytes);
}

}  // namespace

double Row::images_per_second() const {
  return ranks * batch / iteration_seconds;
}

double Row::speedup() const { return ranks * base_seconds / iteration_seconds; }

double Row::gain() const { return first_iteration_seconds / iteration_seconds; }

double Row::hidden_share() const {
  const double all = hidden_seconds + exposed_seconds;
  return bytes_sent > 0 && all > 0 ? hidden_seconds / all : -1;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  if (values.size() % 2 == 1) return values[half];
  return (values[half - 1] + values[half]) / 2;
}

Row Combine(const std::vector<std::vector<StepSample>>& ranks) {
  const std::size_t steps = ranks[0].size();
  const auto median = [&](double StepSample::*field, bool slowest) {
    std::vector<double> values;
    for (std::size_t step = 0; step < steps; ++step) {
      double sum = 0;
      double most = 0;
      for (const auto& samples : ranks) {
        sum += samples[step].*field;
        most = std::max(most, samples[step].*field);
      }
      values.push_back(slowest ? most
                               : sum / static_cast<double>(ranks.size()));
    }
    return Median(values);
  };
  Row row;
  row.ranks = static_cast<int>(ranks.size());
  row.iteration_seconds = median(&StepSample::iteration_seconds, true);
  row.exposed_seconds = median(&StepSample::exposed_seconds, false);
  row.hidden_seconds = median(&StepSample::hidden_seconds, false);
  row.bytes_sent = median(&StepSample::bytes_sent, false);
  row.bucket_bytes = median(&StepSample::bucket_bytes, false);
  row.buckets = median(&StepSample::buckets, false);
  row.base_seconds = median(&StepSample::base_seconds, true);
  return row;
}

std::string RowHeader() {
  return "model        mode              ranks  iteration ms  images/s  "
         "speed-up   gain  exposed ms  hidden  MB/rank/step   theta  buckets\n";
}

std::string RowLine(const Row& row) {
  const bool talks = row.bytes_sent > 0;
  return Format(
      "%-11s  %-16s  %5d  %12.2f  %8.0f  %8.2f  %4.1fx  %10.2f  %6s  %12.2f"
      "  %6s  %7.0f\n",
      row.model.c_str(), row.label.c_str(), row.ranks,
      1e3 * row.iteration_seconds, row.images_per_second(), row.speedup(),
      row.gain(), 1e3 * row.exposed_seconds,
      talks ? Format("%.1f%%", 100 * row.hidden_share()).c_str() : "-",
      row.bytes_sent / 1e6, Bytes(row.bucket_bytes).c_str(), row.buckets);
}

std::string RowJson(const Row& row) {
  nlohmann::json json = {{"model", row.model},
                         {"mode", row.mode},
                         {"label", row.label},
                         {"fabric", row.fabric},
                         {"device", row.device},
                         {"ranks", row.ranks},
                         {"batch", row.batch},
                         {"iteration_ms", 1e3 * row.iteration_seconds},
                         {"images_per_second", row.images_per_second()},
                         {"speedup", row.speedup()},
                         {"gain", row.gain()},
                         {"exposed_ms", 1e3 * row.exposed_seconds},
                         {"hidden_ms", 1e3 * row.hidden_seconds},
                         {"bytes_per_rank_per_step", row.bytes_sent},
                         {"theta_bytes", row.bucket_bytes},
                         {"buckets", row.buckets}};
  if (row.hidden_share() >= 0) json["hidden_share"] = row.hidden_share();
  return json.dump() + "\n";
}

}  // namespace gradientflow::benchmarks
