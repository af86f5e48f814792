#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// One timed step on one rank.
struct StepSample {
  double iteration_seconds = 0;
  double exposed_seconds = 0;  // Communication after the GPU's backward.
  double hidden_seconds = 0;   // Communication under it.
  double bytes_sent = 0;
  double bucket_bytes = 0;
  double buckets = 0;
  double base_seconds = 0;  // An iteration without communication.
};

// Per mode, per step.
using CellSamples = std::vector<std::vector<StepSample>>;

std::string PackSamples(const CellSamples& samples);
Result<CellSamples> UnpackSamples(const std::string& text);

}  // namespace gradientflow::benchmarks
