#include <cmath>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/core/state_file.h"
#include "gradientflow/session/agreement.h"
#include "gradientflow/session/session_impl.h"

// What a session saves and restores. The file: core/state_file.h.
namespace gradientflow {

Result<std::vector<std::byte>> SessionImpl::SaveState() const {
  const std::string settings = Settings();
  SavedState state;
  state.settings = settings;
  state.step = step_;
  state.loss_scale = loss_scale_;
  state.selection = std::as_bytes(aggregator_->next_selection());
  const Result<std::span<const float>> residual = aggregator_->residual();
  if (!residual.ok()) return residual.status();
  state.residual = std::as_bytes(residual.value());
  std::vector<float> from_device;
  if (device_side_ != nullptr) {
    Result<std::vector<float>> momentum =
        device_side_->optimizer().Momentum(device_side_->sync().producer());
    if (!momentum.ok()) return momentum.status();
    from_device = std::move(momentum).value();
    state.momentum = std::as_bytes(std::span<const float>(from_device));
  } else {
    state.momentum = std::as_bytes(optimizer_->momentum());
  }
  return WriteState(state);
}

Status SessionImpl::RestoreState(const std::vector<std::byte>& bytes) {
  Result<SavedState> read = ReadState(bytes);
  if (!read.ok()) return read.status();
  const SavedState& state = read.value();
  GF_RETURN_IF_ERROR(CheckSettings(Settings(), state.settings));
  if (!(state.loss_scale > 0) || !std::isfinite(state.loss_scale)) {
    return Status(StatusCode::kDataLoss,
                  StrCat("the state's loss scale is ", state.loss_scale,
                         ", expected a positive number"));
  }
  const std::size_t momentum_bytes = layout_.elements() * sizeof(float);
  if (!state.momentum.empty() && state.momentum.size() != momentum_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the state's momentum has ", state.momentum.size(),
                         " bytes, expected ", momentum_bytes, " or none"));
  }
  Status status;
  progress_->Do([&] {
    if (!engine_->untouched()) {
      status = Status(StatusCode::kFailedPrecondition,
                      StrCat("RestoreState() within step ", step_));
      return;
    }
    status = aggregator_->Restore(state.step, state.loss_scale, state.residual,
                                  state.selection);
    if (!status.ok()) return;
    status = device_side_ == nullptr
                 ? optimizer_->RestoreMomentum(state.momentum)
                 : device_side_->optimizer().RestoreMomentum(
                       state.momentum, device_side_->sync().producer());
    if (!status.ok()) return;
    step_ = state.step;
    loss_scale_ = state.loss_scale;
    engine_->Begin(step_, loss_scale_);
  });
  return status;
}

}  // namespace gradientflow
