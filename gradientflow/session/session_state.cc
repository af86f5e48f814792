#include <cmath>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/agreement.h"
#include "gradientflow/session/session_impl.h"
#include "gradientflow/session/state_file.h"

// What a session saves and restores. The file: session/state_file.h.
namespace gradientflow {
namespace {

// No allgather of a caller's has this one: a rank that makes one while others
// restore is found out.
constexpr std::uint64_t kPlaceOfStates = 0x7361766564207374;

}  // namespace

Result<std::vector<std::byte>> SessionImpl::SaveState() const {
  const Turn turn(*this, StepCall::kSaveState);
  GF_RETURN_IF_ERROR(turn.status());
  const std::string settings = StateText(options_, specs_);
  SavedState state;
  state.settings = settings;
  state.job = job_;
  state.rank = static_cast<std::uint32_t>(options_.rank);
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

Result<std::size_t> SessionImpl::StateBytes() const {
  Status legal;
  progress_->Do([&] { legal = Admit(StepCall::kSaveState); });
  GF_RETURN_IF_ERROR(legal);
  StatePayloads payloads;
  payloads.settings = StateText(options_, specs_).size();
  payloads.selection = aggregator_->next_selection().size();
  payloads.residual = aggregator_->residual_bytes();
  payloads.momentum = device_side_ == nullptr
                          ? optimizer_->momentum().size_bytes()
                          : device_side_->optimizer().momentum_bytes();
  return gradientflow::StateBytes(payloads);
}

// Two phases: all ranks check their states and compare what they found; then
// all apply them, or none does.
Status SessionImpl::RestoreState(std::span<const std::byte> bytes) {
  const Turn turn(*this, StepCall::kRestoreState);
  if (turn.session_failed()) return turn.status();
  const Result<SavedState> read = ReadState(bytes);
  Status checked = turn.status();
  if (checked.ok()) {
    checked = read.ok() ? CheckState(read.value()) : read.status();
  }
  // A rank that cannot restore its state takes part: the others wait for it.
  const Status agreed =
      AgreeOnState(checked.ok() ? ClaimOf(read.value()) : RefusalOf(checked));
  if (!checked.ok()) return checked;
  if (!agreed.ok()) return agreed;
  Status applied = ApplyState(read.value());
  if (!applied.ok()) {
    // The other ranks go on from their states.
    applied = Status(applied.code(),
                     StrCat("rank ", options_.rank,
                            " did not restore its state as the others did: ",
                            applied.message()));
    progress_->Do([&] { applied = GiveUp(applied); });
  }
  return applied;
}

// What this rank can tell by itself.
Status SessionImpl::CheckState(const SavedState& state) const {
  GF_RETURN_IF_ERROR(
      CheckSettings(StateText(options_, specs_), state.settings));
  if (state.rank != static_cast<std::uint32_t>(options_.rank)) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the state is that of rank ", state.rank, ", this is rank ",
               options_.rank, ": each rank saves and restores its own"));
  }
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
    status =
        aggregator_->CheckState(state.step, state.residual, state.selection);
  });
  return status;
}

Status SessionImpl::AgreeOnState(const StateClaim& mine) {
  std::vector<StateClaim> all(static_cast<std::size_t>(options_.size), mine);
  if (options_.size > 1) {
    CollectiveCall call;
    call.kind = CollectiveKind::kAllgather;
    call.input = &mine;
    call.output = all.data();
    call.count = sizeof(StateClaim);
    call.dtype = call.wire = DType::kInt8;
    call.place = kPlaceOfStates;
    GF_RETURN_IF_ERROR(Run(call));
  }
  return CheckClaims(all);
}

// REQUIRES that all ranks have agreed.
Status SessionImpl::ApplyState(const SavedState& state) {
  Status status;
  progress_->Do([&] {
    // Nothing keeps hooks from running meanwhile.
    if (!engine_->untouched()) {
      status = Status(StatusCode::kFailedPrecondition,
                      StrCat("a gradient of step ", step_,
                             " was marked while RestoreState() ran"));
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
    job_ = state.job;
    step_ = state.step;
    loss_scale_ = state.loss_scale;
    step_state_.Restored();
    if (tuner_ != nullptr) tuner_->Restart();
    engine_->Begin(step_, loss_scale_);
  });
  return status;
}

}  // namespace gradientflow
