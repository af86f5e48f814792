#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/measured.h"

// The file "profile": what a model's step takes where it was measured.
namespace gradientflow::planner {

struct ProfiledTensor {
  std::string name;
  std::size_t elements = 0;
  Quartiles ready_seconds;  // After backward started.
};

struct Profile {
  Provenance measured;
  std::string model;
  std::string device;
  std::string dtype = "float32";  // Of the gradients in the pool.
  std::size_t batch_samples = 0;  // Of one rank in a step; 0: not known.
  std::size_t ranks = 1;
  std::size_t steps = 1;
  Quartiles forward_seconds;
  Quartiles backward_seconds;
  Quartiles wait_seconds;  // Communication that was not hidden.
  Quartiles optimizer_seconds;
  Quartiles step_seconds;
  double step_spread_fraction = 0;
  std::optional<double> rank_spread_fraction;
  std::vector<ProfiledTensor> tensors;  // In pool order.

  // A rank's own work in a step: all but the wait.
  double compute_seconds() const {
    return step_seconds.median > wait_seconds.median
               ? step_seconds.median - wait_seconds.median
               : 0;
  }
  // How much ranks differ within a step: measured, or as a rank differs from
  // step to step.
  double spread_fraction() const {
    return rank_spread_fraction.value_or(step_spread_fraction);
  }
};

// The text of a profile, and its inverse. ParseProfile returns
// kInvalidArgument, with the name of the field, if one is missing, not known,
// of another type, negative or of another version. Any thread.
std::string ProfileText(const Profile& profile);
Result<Profile> ParseProfile(std::string_view text);

}  // namespace gradientflow::planner
