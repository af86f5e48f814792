#include "benchmarks/faults/campaign.h"

#include <algorithm>
#include <iomanip>
#include <random>
#include <sstream>

#include "benchmarks/faults/processes.h"
#include "gradientflow/base/str_cat.h"
#include "nlohmann/json.hpp"

namespace gradientflow::faults {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::string Times(const char* what, const std::vector<double>& seconds) {
  if (seconds.empty()) return "";
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << "\n  " << what << ": median "
       << Median(seconds) << " s, max " << Largest(seconds) << " s ("
       << seconds.size() << " survivors)";
  return text.str();
}

nlohmann::json TimesJson(const std::vector<double>& seconds) {
  return {{"survivors", seconds.size()},
          {"median_seconds", Median(seconds)},
          {"max_seconds", Largest(seconds)}};
}

void Count(const Draw& draw, const TrialResult& result,
           CampaignTotals* totals) {
  ++totals->trials;
  ++totals->by_verdict[static_cast<std::size_t>(result.verdict)];
  ++totals->by_phase[static_cast<std::size_t>(result.phase)];
  totals->leftovers += result.leftovers.empty() ? 0 : 1;
  std::vector<double>& times = result.phase <= Phase::kOpening
                                   ? totals->opening_seconds
                               : draw.fault.stop ? totals->stop_seconds
                                                 : totals->death_seconds;
  times.insert(times.end(), result.detection_seconds.begin(),
               result.detection_seconds.end());
}

}  // namespace

Draw DrawTrial(const CampaignConfig& config, int index) {
  std::mt19937_64 random(config.seed * 1000003 +
                         static_cast<std::uint64_t>(index));
  const auto below = [&](std::uint64_t n) { return random() % n; };
  Draw draw;
  draw.job.ranks = config.ranks;
  draw.job.heartbeat_timeout_seconds = config.heartbeat_timeout_seconds;
  draw.job.fabric =
      config.fabrics[static_cast<std::size_t>(index) % config.fabrics.size()];
  constexpr std::size_t kBuckets[] = {0, std::size_t{64} << 10, kInfiniteBytes,
                                      kAutoBytes};
  draw.job.bucket_bytes = kBuckets[below(std::size(kBuckets))];
  draw.job.wire_dtype = below(2) == 0 ? DType::kFloat32 : DType::kFloat16;
  if (below(2) == 0) draw.job.rendezvous = "file://" + config.folder;
  draw.fault.victim =
      static_cast<int>(below(static_cast<std::uint64_t>(config.ranks)));
  draw.fault.stop = below(2) == 0;
  constexpr Phase kWhen[] = {
      Phase::kOpening,   Phase::kOpening,   Phase::kBackward,
      Phase::kBackward,  Phase::kFinishing, Phase::kFinishing,
      Phase::kOptimizer, Phase::kBetween,   Phase::kClosing};
  draw.fault.phase = kWhen[below(std::size(kWhen))];
  draw.fault.step = below(draw.job.steps);
  // Opening takes some 30 ms, a phase of a step about one.
  const std::uint64_t most_us =
      draw.fault.phase == Phase::kOpening ? 40000 : 2500;
  draw.fault.delay = std::chrono::microseconds(below(most_us));
  return draw;
}

std::string Describe(const Draw& draw) {
  return StrCat(Name(draw.job.fabric), ", ",
                draw.job.rendezvous.starts_with("file") ? "file" : "tcp",
                " rendezvous, ", draw.fault.stop ? "stop" : "kill", " of rank ",
                draw.fault.victim, " in ", Name(draw.fault.phase), " of step ",
                draw.fault.step, " + ",
                static_cast<double>(draw.fault.delay.count()) * 1e-6, " ms");
}

CampaignTotals RunCampaign(
    const CampaignConfig& config,
    const std::function<void(int, const Draw&, const TrialResult&)>& on_trial) {
  CampaignTotals totals;
  for (int i = 0; i < config.count; ++i) {
    Draw draw = DrawTrial(config, i);
    if (draw.job.rendezvous.empty()) {
      draw.job.rendezvous = LocalRendezvous().value();
    }
    const TrialResult result = RunTrial(draw.job, draw.fault);
    Count(draw, result, &totals);
    if (on_trial) on_trial(i, draw, result);
  }
  return totals;
}

std::string CampaignTotals::Summary() const {
  return StrCat(
      trials, " faults: ", count(Verdict::kClean),
      " clean errors on all survivors, ", count(Verdict::kFinished),
      " successes after the victim's part was done, ",
      count(Verdict::kIndirect),
      " while opening that name who was held up by it, ", count(Verdict::kHang),
      " hangs, ", count(Verdict::kWrongSum), " wrong sums, ",
      count(Verdict::kWrongCulprit), " wrong culprits, ", count(Verdict::kSlow),
      " slow, ", count(Verdict::kUnclear), " unclear errors, ",
      count(Verdict::kUnexpected), " crashes or impossible successes, ",
      leftovers, " leftovers", Times("death detected after", death_seconds),
      Times("stop detected after", stop_seconds),
      Times("while opening, after", opening_seconds));
}

std::string CampaignTotals::Json() const {
  nlohmann::json json = {{"faults", trials},
                         {"leftovers", leftovers},
                         {"death", TimesJson(death_seconds)},
                         {"stop", TimesJson(stop_seconds)},
                         {"opening", TimesJson(opening_seconds)}};
  for (int v = 0; v < kVerdicts; ++v) {
    json["verdicts"][std::string(Name(static_cast<Verdict>(v)))] =
        by_verdict[static_cast<std::size_t>(v)];
  }
  for (int p = 0; p < kPhases; ++p) {
    json["phases"][std::string(Name(static_cast<Phase>(p)))] =
        by_phase[static_cast<std::size_t>(p)];
  }
  return json.dump();
}

}  // namespace gradientflow::faults
