#pragma once

#include <string>
#include <vector>

namespace gradientflow::benchmarks {

// Of one seed on one rank.
struct TrainingResult {
  double train_loss = 0;  // Mean over the training set, after the last step.
  double test_accuracy = 0;
  double bytes_per_step = 0;  // Sent by this rank, mean over the steps.
  double seconds = 0;         // Of the steps.
  bool identical = false;     // Every rank ended with the same weights.
};

// One configuration over several seeds.
struct Summary {
  std::string name;
  int ranks = 1;
  double train_loss = 0;      // Mean.
  double accuracy = 0;        // Mean, 0 to 1.
  double accuracy_sd = 0;     // Of the seeds (n - 1); 0 for one seed.
  double bytes_per_step = 0;  // Per rank, mean.
  double seconds = 0;         // Per seed, mean.
  bool identical = true;      // On every rank, for every seed.
};

// `runs`: per seed, per rank. REQUIRES at least one of each.
Summary Summarise(const std::string& name,
                  const std::vector<std::vector<TrainingResult>>& runs);

std::string SummaryHeader();
// One line of the table; gains and losses are against `base`.
std::string SummaryLine(const Summary& summary, const Summary& base);

}  // namespace gradientflow::benchmarks
