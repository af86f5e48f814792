#include "gradientflow/core/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

Status Invalid(const char* field, const char* expected, double seen) {
  return {
      StatusCode::kInvalidArgument,
      StrCat("loss scaler ", field, ": expected ", expected, ", seen ", seen)};
}

}  // namespace

Result<LossScaler> LossScaler::Create(const LossScalerConfig& config) {
  if (!(config.min > 0 && std::isfinite(config.min))) {
    return Invalid("min", "a finite value above 0", config.min);
  }
  if (!(config.max >= config.min && std::isfinite(config.max))) {
    return Invalid("max", "a finite value of at least min", config.max);
  }
  if (!(config.initial >= config.min && config.initial <= config.max)) {
    return Invalid("initial", "a value in [min, max]", config.initial);
  }
  if (!(config.growth >= 1 && std::isfinite(config.growth))) {
    return Invalid("growth", "a finite value of at least 1", config.growth);
  }
  if (!(config.backoff > 0 && config.backoff <= 1)) {
    return Invalid("backoff", "a value in (0, 1]", config.backoff);
  }
  if (config.growth_steps == 0) {
    return Invalid("growth_steps", "at least 1", config.growth_steps);
  }
  return LossScaler(config);
}

bool LossScaler::Update(bool nonfinite) {
  const float before = state_.scale;
  if (nonfinite) {
    state_.good_steps = 0;
    state_.scale = std::max(config_.min, before * config_.backoff);
  } else if (++state_.good_steps >= config_.growth_steps) {
    state_.good_steps = 0;
    state_.scale = std::min(config_.max, before * config_.growth);
  }
  return state_.scale != before;
}

Status LossScaler::Restore(const State& state) {
  if (!(state.scale >= config_.min && state.scale <= config_.max)) {
    return Invalid("scale to restore", "a value in [min, max]", state.scale);
  }
  if (state.good_steps >= config_.growth_steps) {
    return Invalid("good_steps to restore", "a value below growth_steps",
                   state.good_steps);
  }
  state_ = state;
  return {};
}

}  // namespace gradientflow
