#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/session_impl.h"

// Steps and the optimiser; state is in session_state.cc. Next in the data path:
// session/engine.h.
namespace gradientflow {

Status SessionImpl::Admit(StepCall call) const {
  const bool touched = !engine_->untouched();
  const Status& job = transport_.fabric->status();
  // FinishStep() waits until nobody uses the gradients any more.
  if (touched && !job.ok() && !step_state_.failed() &&
      call != StepCall::kFinishStep) {
    return StepFailure(job);
  }
  return step_state_.Admit(call, step_, touched);
}

SessionImpl::Turn::Turn(const SessionImpl& session, StepCall call)
    : session_(session) {
  session.progress_->Do([&] {
    status_ = session.Admit(call);
    session_failed_ = session.step_state_.failed();
    if (status_.ok()) session.step_state_.Begins(call);
  });
}

SessionImpl::Turn::~Turn() {
  if (!status_.ok()) return;
  session_.progress_->Do([&] { session_.step_state_.Ends(); });
}

Status SessionImpl::StepFailure(const Status& why) const {
  return Status(why.code(), StrCat("step ", step_, " on rank ", options_.rank,
                                   " failed: ", why.message()));
}

Status SessionImpl::GiveUp(const Status& why) {
  const Status first = step_state_.Fail(why);
  transport_.fabric->Fail(first);
  engine_->Poll();
  return first;
}

Status SessionImpl::SetStream(void* native) {
  Status status;
  progress_->Do([&] {
    status = Admit(StepCall::kSetStream);
    if (status.ok() && device_side_ != nullptr) {
      device_side_->sync().SetProducer(native);
    }
  });
  return status;
}

void SessionImpl::GradientReady(std::size_t i) {
  if (engine_->Ready(i)) progress_->Notify();
}

void SessionImpl::GradientAbsent(std::size_t i) {
  // Only whoever has claimed the tensor may touch it.
  if (!engine_->Claim(i)) return progress_->Notify();
  const BufferView view = gradient(i);
  if (device_side_ == nullptr) {
    std::fill_n(view.data, view.bytes, std::byte{0});
  } else if (view.bytes > 0) {
    const Status zeroed = device_side_->sync().Zero(view.data, view.bytes);
    if (!zeroed.ok()) {
      engine_->Misused(zeroed);
      return progress_->Notify();
    }
  }
  if (engine_->Publish(i)) progress_->Notify();
}

Result<StepStats> SessionImpl::FinishStep() {
  Result<StepStats> stats = Status(StatusCode::kInternal, "not run");
  bool admitted = false;
  bool over = false;
  progress_->Drive([&] {
    if (!admitted) {
      if (const Status why = Admit(StepCall::kFinishStep); !why.ok()) {
        stats = why;
        return true;
      }
      step_state_.Begins(StepCall::kFinishStep);
      admitted = true;
    }
    if (!over && transport_.fabric->status().ok()) {
      if (const Status missing = engine_->EndBackward(); !missing.ok()) {
        step_state_.Ends();
        stats = missing;
        return true;
      }
      over = true;
    }
    if (!engine_->StepDone()) return false;
    if (tuner_ != nullptr && tuner_->in_flight()) return false;
    stats = CloseStep();
    return true;
  });
  return stats;
}

Result<StepStats> SessionImpl::CloseStep() {
  const EngineTimes times = engine_->End();
  const AggregateResult& result = aggregator_->result();
  const Status& job = transport_.fabric->status();
  if (!job.ok() || !result.status.ok()) {
    return step_state_.Fail(StepFailure(job.ok() ? result.status : job));
  }
  StepStats stats;
  stats.step = step_++;
  stats.buckets = result.buckets;
  stats.bytes_sent = BytesSent() - bytes_before_;
  bytes_before_ = BytesSent();
  stats.selected_chunks = result.selected_chunks;
  stats.chunks = result.chunks;
  stats.backward_seconds = times.backward_seconds;
  stats.exposed_seconds = times.exposed_seconds;
  stats.hidden_seconds = times.hidden_seconds;
  stats.nonfinite = result.nonfinite;
  stats.bucket_bytes = bucket_bytes_;
  stats.gradient_scale = gradient_scale_ = result.gradient_scale;
  skip_update_ = result.nonfinite;
  exchanged_.assign(aggregator_->exchanged().begin(),
                    aggregator_->exchanged().end());
  selection_.assign(aggregator_->selection().begin(),
                    aggregator_->selection().end());
  if (tuner_ != nullptr) Tune();
  step_state_.Finished();
  engine_->Begin(step_, loss_scale_);
  return stats;
}

// Between two steps; on all ranks between the same two.
void SessionImpl::Tune() {
  if (const std::optional<std::size_t> bytes = tuner_->Take()) {
    bucket_bytes_ = *bytes;
    aggregator_->SetBucketBytes(bucket_bytes_);
  }
  tuner_->StepDone(tuner_->Wants() ? engine_->ReadySeconds()
                                   : std::vector<float>());
}

Status SessionImpl::SetLossScale(float scale) {
  if (!(scale > 0) || !std::isfinite(scale) || !std::isfinite(1.0F / scale)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("loss scale ", scale, ", expected a positive number"));
  }
  Status status;
  progress_->Do([&] {
    status = Admit(StepCall::kSetLossScale);
    if (!status.ok()) return;
    loss_scale_ = scale;
    if (engine_->untouched()) aggregator_->Begin(step_, scale);
  });
  return status;
}

// What does not depend on the step.
Status SessionImpl::CheckOptimizer(
    const std::vector<OptimizerGroup>& groups) const {
  GF_RETURN_IF_ERROR(CheckGroups(layout_, groups));
  if (options_.sparsity <= 0 || options_.residual != ResidualMode::kMomentum) {
    return Status();
  }
  for (const OptimizerGroup& group : groups) {
    if (group.config.momentum == options_.momentum) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the optimiser's momentum is ", group.config.momentum,
               ", but what is kept back decays by ", options_.momentum,
               " (residual=momentum): set option momentum to the optimiser's"));
  }
  return Status();
}

Status SessionImpl::OptimizerStep(const std::vector<OptimizerGroup>& groups) {
  const Turn turn(*this, StepCall::kOptimizerStep);
  GF_RETURN_IF_ERROR(turn.status());
  GF_RETURN_IF_ERROR(CheckOptimizer(groups));
  Status status;
  std::size_t updated = 0;
  while (!skip_update_ && updated < groups.size() && status.ok()) {
    status = Update(updated, groups[updated]);
    if (status.ok()) ++updated;
  }
  const bool refused = status.code() == StatusCode::kInvalidArgument ||
                       status.code() == StatusCode::kResourceExhausted;
  if (refused && updated == 0) return status;  // All is as it was.
  progress_->Do([&] {
    if (status.ok()) return step_state_.Applied(step_ - 1);
    // Weights and momentum are not what they are on other ranks.
    status = GiveUp(
        Status(status.code(), StrCat("applying step ", step_ - 1, " on rank ",
                                     options_.rank, ": ", status.message())));
  });
  return status;
}

Status SessionImpl::Update(std::size_t index, const OptimizerGroup& group) {
  if (device_side_ != nullptr) {
    return device_side_->optimizer().Step(
        index, group.config, group.weights, aggregator_->device_slots(),
        gradient_scale_, device_side_->sync().producer());
  }
  return optimizer_->Step(
      group.config,
      {pool().data, options_.pool_dtype, exchanged_, gradient_scale_},
      group.weights);
}

}  // namespace gradientflow
