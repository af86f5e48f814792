#include "gradientflow/session/checkpoints.h"

#include <cmath>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/options.h"
#include "gradientflow/csc/csc.h"
#include "gradientflow/session/state_claim.h"

namespace gradientflow {
namespace {

// No allgather of a caller has this place, so a rank that makes one while
// others restore is detected.
constexpr std::uint64_t kPlaceOfStates = 0x7361766564207374;

}  // namespace

Result<std::vector<std::byte>> Checkpoints::Save() {
  const Steps::Turn turn(*args_.steps, StepCall::kSaveState);
  GF_RETURN_IF_ERROR(turn.status());
  Aggregator& aggregator = args_.steps->aggregator();
  const Steps::Position position = args_.steps->position();
  SavedState state;
  state.settings = args_.settings;
  state.job = args_.job;
  state.rank = static_cast<std::uint32_t>(args_.rank);
  state.step = position.step;
  state.loss_scale = position.loss_scale;
  state.selection = std::as_bytes(aggregator.next_selection());
  const Result<std::span<const float>> residual = aggregator.residual();
  if (!residual.ok()) return residual.status();
  state.residual = std::as_bytes(residual.value());
  std::vector<float> scratch;
  const Result<std::span<const float>> momentum =
      args_.pool->Momentum(&scratch);
  if (!momentum.ok()) return momentum.status();
  state.momentum = std::as_bytes(momentum.value());
  return WriteState(state);
}

Result<std::size_t> Checkpoints::Bytes() {
  const Steps::Turn turn(*args_.steps, StepCall::kSaveState);
  GF_RETURN_IF_ERROR(turn.status());
  StatePayloads payloads;
  payloads.settings = args_.settings.size();
  payloads.selection = args_.steps->aggregator().next_selection().size();
  payloads.residual = args_.steps->aggregator().residual_bytes();
  payloads.momentum = args_.pool->momentum_bytes();
  return StateBytes(payloads);
}

Status Checkpoints::Restore(std::span<const std::byte> bytes) {
  const Steps::Turn turn(*args_.steps, StepCall::kRestoreState);
  if (turn.session_failed()) return turn.status();
  const Result<SavedState> read = ReadState(bytes);
  Status checked = turn.status();
  if (checked.ok()) checked = read.ok() ? Check(read.value()) : read.status();
  // A rank that cannot restore its state takes part nevertheless, because the
  // others wait for it.
  StateClaim mine;
  if (checked.ok()) {
    mine = ClaimOf(read.value());
  } else {
    mine.refusal = RefusalOf(checked);
  }
  ClaimArgs claims = args_.claims;
  claims.place = kPlaceOfStates;
  const Result<std::vector<StateClaim>> all = GatherClaims(claims, mine);
  if (!checked.ok()) return checked;
  if (!all.ok()) return all.status();
  GF_RETURN_IF_ERROR(CheckClaims(all.value()));
  Status applied = Apply(read.value());
  if (!applied.ok()) {
    // The other ranks go on from their states.
    applied = Status(applied.code(),
                     StrCat("rank ", args_.rank,
                            " did not restore its state as the others did: ",
                            applied.message()));
    args_.progress->Do([&] { applied = args_.steps->GiveUp(applied); });
  }
  return applied;
}

// Checks what this rank can tell by itself.
Status Checkpoints::Check(const SavedState& state) const {
  GF_RETURN_IF_ERROR(CheckSettings(args_.settings, state.settings));
  if (state.rank != static_cast<std::uint32_t>(args_.rank)) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the state is that of rank ", state.rank, ", this is rank ",
               args_.rank, ": each rank saves and restores its own"));
  }
  if (!IsLossScale(state.loss_scale)) {
    return Status(StatusCode::kDataLoss,
                  StrCat("the state's loss scale is ", state.loss_scale,
                         ", expected a positive number"));
  }
  const std::size_t momentum_bytes = args_.layout->elements() * sizeof(float);
  if (!state.momentum.empty() && state.momentum.size() != momentum_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the state's momentum has ", state.momentum.size(),
                         " bytes, expected ", momentum_bytes, " or none"));
  }
  Status status;
  args_.progress->Do([&] {
    status = args_.steps->aggregator().CheckState(state.step, state.residual,
                                                  state.selection);
  });
  return status;
}

// REQUIRES that all ranks have agreed.
Status Checkpoints::Apply(const SavedState& state) {
  Status status;
  args_.progress->Do([&] {
    // Hooks may run at the same time; nothing prevents it.
    status = args_.steps->CheckUntouched();
    if (!status.ok()) return;
    status = args_.steps->aggregator().Restore(state.step, state.loss_scale,
                                               state.residual, state.selection);
    if (status.ok()) status = args_.pool->RestoreMomentum(state.momentum);
    if (!status.ok()) return;
    args_.job = state.job;
    args_.steps->GoOnFrom({state.step, state.loss_scale});
  });
  return status;
}

}  // namespace gradientflow
