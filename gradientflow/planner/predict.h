#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/call_prices.h"
#include "gradientflow/planner/cluster.h"
#include "gradientflow/planner/probe.h"
#include "gradientflow/planner/profile.h"
#include "gradientflow/planner/step.h"

namespace gradientflow::planner {

// The part by which a prediction misses, in four of five cases, when nothing of
// the predicted cluster was measured under training: of the paper's cells that
// were predicted for another cluster or for more ranks than the constants are
// from (`gradientflow_plan paper`).
inline constexpr double kModelErrorFraction = 0.084;

// An exchange and its name in tables: "csc float16".
struct NamedExchange {
  std::string name;
  Exchange exchange;
};
// Names "dense" or "csc", the wire's dtype, and what else is not the default.
std::string NameOf(const Exchange& exchange);

struct PredictOptions : HostOptions {
  std::vector<int> ranks = {2, 4, 8, 16, 32, 64};
  std::vector<Exchange> exchanges = {{}};
};

struct Prediction {
  int ranks = 1;
  int hosts = 1;
  Exchange exchange;
  StepForecast step;
  std::string algorithm;          // Of the largest bucket.
  double samples_per_second = 0;  // Of all ranks; 0 without a batch size.
  double efficiency = 0;          // Own work of a rank as a part of the step.
  // The true step is between these in four of five cases.
  double low_seconds = 0;
  double high_seconds = 0;
  double bytes_out = 0;  // That leave all hosts together in a step.
  Extrapolated extrapolated;
};

// A prediction for each number of ranks and each exchange, in this order.
// kInvalidArgument if the profile has no gradients, the probe lacks a pair, or
// the hosts have fewer ranks.
Result<std::vector<Prediction>> Predict(const Profile& profile,
                                        const Probe& probe,
                                        const PredictOptions& options);

}  // namespace gradientflow::planner
