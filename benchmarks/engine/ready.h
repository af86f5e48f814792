#pragma once

#include <string>

#include "benchmarks/scaling/model.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

struct ReadyTimes {
  double median_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

// What GradientReady() costs the thread that calls it, over `steps` steps of
// `model` on two ranks joined by TCP: each call by the clock, less what reading
// the clock costs. With the waking of the progress thread where it is due.
Result<ReadyTimes> MeasureReady(const Model& model, int steps);

}  // namespace gradientflow::benchmarks
