#pragma once

#include <string>
#include <vector>

#include "benchmarks/scaling/samples.h"

namespace gradientflow::benchmarks {

// One line of the table: medians over the timed steps.
struct Row {
  std::string model;
  std::string mode;
  std::string label;
  std::string fabric;
  std::string device = "cpu";  // Where the pool lies.
  int ranks = 1;
  int batch = 0;  // Per rank.
  double iteration_seconds = 0;
  double exposed_seconds = 0;
  double hidden_seconds = 0;
  double bytes_sent = 0;  // Per rank and step.
  double bucket_bytes = 0;
  double buckets = 0;
  double first_iteration_seconds = 0;  // Of the first mode on these ranks.
  double base_seconds = 0;             // An iteration without communication.

  double images_per_second() const;
  double speedup() const;  // Against one GPU without communication.
  double gain() const;     // Against the first mode on these ranks.
  // Of the communication's time, what ran under backward; 0 to 1, and -1
  // where there was none.
  double hidden_share() const;
};

// REQUIRES: not empty. The mean of the middle two for an even number.
double Median(std::vector<double> values);

// Combines all ranks' samples of one mode: a step takes as long as on its
// slowest rank; the rest are means over the ranks. REQUIRES: at least one rank
// and step, and as many steps on every rank.
Row Combine(const std::vector<std::vector<StepSample>>& ranks);

std::string RowHeader();
std::string RowLine(const Row& row);
std::string RowJson(const Row& row);  // One line.

}  // namespace gradientflow::benchmarks
