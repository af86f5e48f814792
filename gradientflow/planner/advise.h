#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/predict.h"
#include "gradientflow/planner/price.h"

// How many hosts to rent, for how long, and what the answer depends on.
namespace gradientflow::planner {

// Listed hosts are rented in their order; all cost the same.
struct AdviseOptions : HostOptions {
  double samples = 0;  // That all ranks train on together, epochs included.
  std::optional<double> deadline_seconds;
  std::optional<double> budget;  // In the price's currency.
  int most_hosts = 64;
  // What may be chosen. CSC changes the training, so it is chosen only if it is
  // among these; what it would save is said anyway.
  std::vector<Exchange> exchanges = {{}};
};

struct TrainingPlan {
  Prediction prediction;
  std::size_t exchange = 0;  // Its place in AdviseOptions::exchanges.
  double seconds = 0;        // Expected, interruptions included.
  double lost_seconds = 0;   // To them and to checkpoints, of `seconds`.
  double cost = 0;
};

// By how much longer a run takes on so many nodes that may be taken away, on
// average: checkpoints, what is done again after an interruption, and restarts,
// which may be interrupted as well. Interruptions are independent of each other
// and of the time. Infinite if hardly any interval passes without one.
double SpotFactor(const SpotTerms& spot, int nodes);

// What another cluster or exchange would change in the chosen plan.
struct Saving {
  std::string what;
  double seconds = 0;  // That are saved; below 0: lost.
  double cost = 0;
};

// What changes if a constant is 20 % worse.
struct Sensitivity {
  std::string what;
  double seconds_factor = 1;  // Of the chosen plan.
  int best_hosts = 0;         // Of the plan that would be chosen then; 0: none.
};

struct Advice {
  std::optional<TrainingPlan> chosen;  // Unset: nothing keeps the limit.
  TrainingPlan cheapest;               // Whatever it takes,
  TrainingPlan fastest;                // and whatever it costs.
  // The most hosts of which the last one still adds half of what the first one
  // does.
  int last_paying_hosts = 1;
  int most_hosts = 1;  // That were compared.
  std::vector<Saving> savings;
  std::vector<Sensitivity> sensitivities;  // The largest effect first.
};

// Compares all numbers of hosts up to 32, and further ones in steps of a
// tenth. With a deadline the cheapest plan that keeps it is chosen, with a
// budget the fastest, with both the cheapest that keeps both. Steps are those
// of Predict(). kInvalidArgument without samples, without a batch size in the
// profile, or without deadline and budget.
Result<Advice> Advise(const Profile& profile, const Probe& probe,
                      const NodePrice& price, const AdviseOptions& options);

}  // namespace gradientflow::planner
