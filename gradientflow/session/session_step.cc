#include <algorithm>
#include <cmath>
#include <cstring>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/core/state_file.h"
#include "gradientflow/session/agreement.h"
#include "gradientflow/session/session_impl.h"

// Steps, the optimiser, and state. Next in the data path: core/engine.h.
namespace gradientflow {
namespace {

// Steps after which theta is chosen anew from what backward did.
constexpr std::uint64_t kTuneAfter[] = {1, 4, 16};

}  // namespace

void SessionImpl::GradientReady(std::size_t i) {
  if (engine_->Ready(i)) progress_->Notify();
}

void SessionImpl::GradientAbsent(std::size_t i) {
  if (i < layout_.tensors()) {
    const BufferView view = gradient(i);
    if (view.bytes > 0) std::memset(view.data, 0, view.bytes);
  }
  GradientReady(i);
}

Result<StepStats> SessionImpl::FinishStep() {
  if (!failed_.ok()) return failed_;
  bool over = false;
  Status early;
  StepStats stats;
  progress_->Drive([&] {
    if (!over) {
      early = engine_->EndBackward();
      if (!early.ok()) return true;
      over = true;
    }
    if (!engine_->StepDone()) return false;
    stats = CloseStep();
    return true;
  });
  if (!early.ok()) {
    // A missing tensor may still come; a misuse cannot be taken back.
    if (early.code() != StatusCode::kFailedPrecondition) {
      Abort(early);
      failed_ = early;
    }
    return early;
  }
  if (!failed_.ok()) return failed_;
  if (const Status tuned = Tune(); !tuned.ok()) {
    failed_ =
        Status(tuned.code(), StrCat("after step ", step_ - 1, " on rank ",
                                    options_.rank, ": ", tuned.message()));
    return failed_;
  }
  progress_->Do([this] { engine_->Begin(step_, loss_scale_); });
  return stats;
}

StepStats SessionImpl::CloseStep() {
  const EngineTimes times = engine_->End();
  const AggregateResult& result = aggregator_->result();
  failed_ = transport_.fabric->status().ok() ? result.status
                                             : transport_.fabric->status();
  if (!failed_.ok()) {
    failed_ = Status(failed_.code(),
                     StrCat("step ", step_, " on rank ", options_.rank,
                            " failed: ", failed_.message()));
  }
  StepStats stats;
  stats.step = step_++;
  stats.buckets = result.buckets;
  stats.bytes_sent = executor_->bytes_sent() - bytes_before_;
  bytes_before_ = executor_->bytes_sent();
  stats.selected_chunks = result.selected_chunks;
  stats.chunks = result.chunks;
  stats.backward_seconds = times.backward_seconds;
  stats.exposed_seconds = times.exposed_seconds;
  stats.hidden_seconds = times.hidden_seconds;
  stats.nonfinite = result.nonfinite;
  stats.bucket_bytes = bucket_bytes_;
  skip_update_ = result.nonfinite;
  exchanged_.assign(aggregator_->exchanged().begin(),
                    aggregator_->exchanged().end());
  selection_.assign(aggregator_->selection().begin(),
                    aggregator_->selection().end());
  return stats;
}

// All ranks tune after the same steps, from the same numbers: each tensor's
// latest time over the ranks.
Status SessionImpl::Tune() {
  if (!tuning_ || options_.size == 1 || layout_.elements() == 0 ||
      std::find(std::begin(kTuneAfter), std::end(kTuneAfter), step_ - 1) ==
          std::end(kTuneAfter)) {
    return Status();
  }
  std::vector<float> ready = engine_->ReadySeconds();
  CollectiveCall call;
  call.output = ready.data();
  call.count = ready.size();
  call.op = ReduceOp::kMax;
  call.channel = Channel::kGradients;
  call.step = step_;
  GF_RETURN_IF_ERROR(Run(call));
  bucket_bytes_ = TuneBucketBytes(layout_, ready, SizeOf(options_.wire_dtype),
                                  1.0 - options_.sparsity, costs_.channel);
  progress_->Do([this] {
    aggregator_->SetBucketBytes(bucket_bytes_);
    bytes_before_ = executor_->bytes_sent();
  });
  return Status();
}

void SessionImpl::SetLossScale(float scale) {
  if (!(scale > 0) || !std::isfinite(scale)) {
    failed_ =
        Status(StatusCode::kInvalidArgument, StrCat("loss scale ", scale,
                                                    ", expected a positive "
                                                    "number"));
    return Abort(failed_);
  }
  progress_->Do([&] {
    loss_scale_ = scale;
    if (engine_->untouched()) aggregator_->Begin(step_, scale);
  });
}

Status SessionImpl::OptimizerStep(const OptimizerConfig& config,
                                  const std::vector<float*>& weights) {
  if (step_ == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "OptimizerStep() comes after FinishStep()");
  }
  if (skip_update_) return Status();
  return optimizer_->Step(
      config, {pool_.view().data, options_.pool_dtype, exchanged_}, weights);
}

Result<std::vector<std::byte>> SessionImpl::SaveState() const {
  const std::string settings = Settings();
  SavedState state;
  state.settings = settings;
  state.step = step_;
  state.loss_scale = loss_scale_;
  state.selection = std::as_bytes(aggregator_->next_selection());
  state.residual = std::as_bytes(aggregator_->residual());
  state.momentum = std::as_bytes(optimizer_->momentum());
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
    status = optimizer_->RestoreMomentum(state.momentum);
    if (!status.ok()) return;
    step_ = state.step;
    loss_scale_ = state.loss_scale;
    engine_->Begin(step_, loss_scale_);
  });
  return status;
}

}  // namespace gradientflow
