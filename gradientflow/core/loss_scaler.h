#pragma once

#include <cstdint>

#include "gradientflow/base/status.h"

namespace gradientflow {

struct LossScalerConfig {
  float initial = 65536.0F;
  float growth = 2.0F;   // Factor after growth_steps steps without overflow.
  float backoff = 0.5F;  // Factor after a step with one.
  std::uint32_t growth_steps = 2000;
  float min = 1.0F;         // The scale never leaves [min, max].
  float max = 16777216.0F;  // 2^24.
};

// Dynamic loss scaling for float16 gradients (Micikevicius et al., "Mixed
// Precision Training", arXiv 1710.03740, section 3.2): as large a scale as
// overflows now and then. A pure value: fed with StepStats::nonfinite, which
// is alike on all ranks, it stays alike on all ranks with no communication.
class LossScaler {
 public:
  // What to save; restoring it continues as if never interrupted.
  struct State {
    float scale = 0;
    std::uint32_t good_steps = 0;  // Since the scale last changed.
    bool operator==(const State&) const = default;
  };

  // kInvalidArgument names the field.
  static Result<LossScaler> Create(const LossScalerConfig& config);

  // Multiply the loss by it, and pass it to Session::SetLossScale(), before
  // the step.
  float scale() const { return state_.scale; }

  // After the step. Returns whether scale() changed.
  bool Update(bool nonfinite);

  State state() const { return state_; }
  // kInvalidArgument, and nothing changes, on a state out of bounds.
  Status Restore(const State& state);

 private:
  explicit LossScaler(const LossScalerConfig& config)
      : config_(config), state_{config.initial, 0} {}

  LossScalerConfig config_;
  State state_;
};

}  // namespace gradientflow
