#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/faults/job.h"
#include "benchmarks/faults/trial.h"

namespace gradientflow::faults {

struct CampaignConfig {
  int count = 300;
  int ranks = 3;
  std::vector<JobFabric> fabrics;  // In turn.
  std::uint64_t seed = 1;
  double heartbeat_timeout_seconds = 1.5;
  std::string folder;  // For file rendezvous; empty and ours.
};

struct CampaignTotals {
  int trials = 0;
  std::array<int, kVerdicts> by_verdict{};
  std::array<int, kPhases> by_phase{};  // The victim's.
  int leftovers = 0;                    // Trials that left something.
  std::vector<double> death_seconds;    // To detect it: all survivors.
  std::vector<double> stop_seconds;
  // Of deaths and stops that struck while the job was opened.
  std::vector<double> opening_seconds;

  int count(Verdict verdict) const {
    return by_verdict[static_cast<std::size_t>(verdict)];
  }
  bool Good() const {
    return leftovers == 0 && count(Verdict::kClean) +
                                     count(Verdict::kFinished) +
                                     count(Verdict::kIndirect) ==
                                 trials;
  }
  std::string Summary() const;  // One line and its details.
  std::string Json() const;
};

struct Draw {
  JobConfig job;
  Fault fault;
};
// The `index`-th of the campaign's random faults. Pure.
Draw DrawTrial(const CampaignConfig& config, int index);
std::string Describe(const Draw& draw);

// One after the other: they measure time. `on_trial` may be empty.
CampaignTotals RunCampaign(
    const CampaignConfig& config,
    const std::function<void(int index, const Draw&, const TrialResult&)>&
        on_trial);

}  // namespace gradientflow::faults
