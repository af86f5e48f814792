#include <algorithm>
#include <cmath>
#include <cstring>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/session_impl.h"

// Steps and the optimiser; state is in session_state.cc. Next in the data path:
// core/engine.h.
namespace gradientflow {
namespace {

// Steps after which theta is chosen anew from what backward did.
constexpr std::uint64_t kTuneAfter[] = {1, 4, 16};

}  // namespace

void SessionImpl::SetStream(void* native) {
  if (device_side_ != nullptr) device_side_->sync().SetProducer(native);
}

void SessionImpl::GradientReady(std::size_t i) {
  if (engine_->Ready(i)) progress_->Notify();
}

void SessionImpl::GradientAbsent(std::size_t i) {
  if (i < layout_.tensors()) {
    const BufferView view = gradient(i);
    if (view.bytes == 0) return GradientReady(i);
    if (device_side_ == nullptr) {
      std::memset(view.data, 0, view.bytes);
    } else if (const Status zeroed =
                   device_side_->sync().Zero(view.data, view.bytes);
               !zeroed.ok()) {
      return engine_->Misused(zeroed);
    }
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
    bytes_before_ = BytesSent();
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
  if (mixed_ && config.kind == OptimizerConfig::Kind::kLars) {
    return Status(
        StatusCode::kFailedPrecondition,
        "LARS needs the gradients of all ranks on devices, or of all on the "
        "CPU: else norms may differ in the last bit, and so would the ranks' "
        "weights; use SGD here");
  }
  if (skip_update_) return Status();
  if (device_side_ != nullptr) {
    return device_side_->optimizer().Step(
        config, weights, aggregator_->device_slots(), gradient_scale_,
        device_side_->sync().producer());
  }
  return optimizer_->Step(
      config, {pool().data, options_.pool_dtype, exchanged_, gradient_scale_},
      weights);
}

}  // namespace gradientflow
