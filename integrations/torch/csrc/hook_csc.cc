#include "hook_csc.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "library.h"

namespace gft {

const CscOps& CscHook::OpsFor(const CscBucket& bucket) const {
  return bucket.residual.is_cpu() && !config_.tensor_ops ? CscOps::OnHost()
                                                         : CscOps::OfTensors();
}

c10::intrusive_ptr<c10::ivalue::Future> CscHook::Run(c10d::GradBucket& bucket) {
  CheckDense(bucket, "csc");
  const at::NoGradGuard no_grad;
  if (bucket.getIndex() == 0) BeginStep();
  CscBucket& ours = layout_->Meet(bucket);
  ours.buffer = bucket.getBuffer();
  ++run_;
  if (bucket.isLast()) count_ = run_;
  const bool whole = ours.chunks() == 0;
  const at::Tensor buffer = ours.buffer;
  const double scale = group_.scale_before(buffer);
  if (!whole) {
    OpsFor(ours).Pack(ours, config_.wire, scale);
  } else if (scale != 1.0) {
    buffer.mul_(scale);
  }
  const at::Tensor sent = whole ? buffer : ours.packed;
  stats_.payload_bytes += sent.nbytes();
  // Lives until the future completes, and its buckets with it.
  const auto back = [self = shared_from_this(), layout = layout_, &ours, buffer,
                     whole](c10::ivalue::Future& done) -> c10::IValue {
    done.value();  // Throws what went wrong.
    const at::NoGradGuard no_grad_here;
    if (!whole) self->OpsFor(ours).Unpack(ours);
    return buffer;
  };
  return group_.StartMean(sent)->then(back, c10::TensorType::get());
}

at::Tensor CscHook::Finish(const c10::IValue& result) {
  if (++finished_ == count_) EndStep();
  return result.toTensor();
}

void CscHook::FinishShadow() {
  if (count_ != 0) EndStep();
}

void CscHook::BeginStep() {
  TORCH_CHECK(run_ == 0, "the csc hook: step ", step_, " begins, but of the ",
              "one before only ", finished_, " of ", run_,
              " buckets came to an end: its backward failed. What was kept "
              "back is lost; load a checkpoint, with load_state_dict()");
  SelectNext();
}

void CscHook::EndStep() {
  const at::NoGradGuard no_grad;
  layout_->EndStep(count_);
  std::vector<at::Tensor> bad;
  stats_.chunks = stats_.selected_chunks = 0;
  for (const CscBucket& bucket : layout_->buckets()) {
    if (bucket.chunks() == 0) continue;
    stats_.chunks += bucket.chunks();
    stats_.selected_chunks += static_cast<uint64_t>(
        std::count(bucket.selected.begin(), bucket.selected.end(), 1));
    bad.push_back(bad.empty() ? bucket.bad : bucket.bad.to(bad[0].device()));
  }
  if (!bad.empty()) {
    const at::Tensor any = at::stack(bad).any();
    for (CscBucket& bucket : layout_->buckets()) {
      if (bucket.chunks() == 0) continue;
      OpsFor(bucket).TakeBack(bucket, any.to(bucket.residual.device()));
    }
    StartNorms();
  }
  for (CscBucket& bucket : layout_->buckets()) {
    bucket.buffer.reset();
    bucket.packed.reset();
  }
  ++step_;
  ++stats_.steps;
  run_ = finished_ = count_ = 0;
}

void CscHook::StartNorms() {
  std::vector<at::Tensor> norms;
  for (const CscBucket& bucket : layout_->buckets()) {
    if (bucket.chunks() == 0) continue;
    norms.push_back(norms.empty() ? bucket.norms
                                  : bucket.norms.to(norms[0].device()));
  }
  norms_ = at::cat(norms);
  stats_.payload_bytes += norms_.nbytes();
  pending_ = group_.StartSum(norms_);
}

size_t CscHook::CountFor(size_t chunks) const {
  const double ramp = step_ < config_.warmup_steps
                          ? static_cast<double>(step_) /
                                static_cast<double>(config_.warmup_steps)
                          : 1.0;
  const double k =
      std::round((1.0 - config_.sparsity * ramp) * static_cast<double>(chunks));
  return std::clamp(static_cast<size_t>(k), size_t{1}, chunks);
}

void CscHook::SelectNext() {
  if (pending_ == nullptr) return;
  const HookGroup::Future pending = std::exchange(pending_, nullptr);
  pending->wait();
  pending->value();  // Throws what went wrong.
  const at::Tensor sums = std::exchange(norms_, {}).to(at::kCPU);
  const float* sum = sums.const_data_ptr<float>();
  // A norm that is not finite ranks first: sending the chunk heals it.
  std::vector<float> candidates;
  size_t chunks = 0;
  for (const CscBucket& bucket : layout_->buckets()) {
    for (size_t c = 0; c < bucket.chunks(); ++c, ++chunks) {
      if (bucket.always[c] != 0) continue;
      candidates.push_back(std::isfinite(sum[chunks])
                               ? sum[chunks]
                               : std::numeric_limits<float>::infinity());
    }
  }
  const size_t dense = chunks - candidates.size();
  const size_t wanted = CountFor(chunks);
  std::vector<uint8_t> chosen(candidates.size(), 0);
  if (!candidates.empty() && wanted > dense) {
    Check(gf_csc_select(candidates.data(), candidates.size(), wanted - dense,
                        chosen.data()),
          "selecting chunks");
  }
  size_t next = 0;
  for (CscBucket& bucket : layout_->buckets()) {
    for (size_t c = 0; c < bucket.chunks(); ++c) {
      bucket.selected[c] = bucket.always[c] != 0 ? 1 : chosen[next++];
    }
  }
}

void CscHook::CheckBetweenSteps(const char* what) const {
  TORCH_CHECK(
      run_ == 0, "the csc hook: ", what, " within step ", step_,
      ", expected between steps: after backward has ended, or, where it "
      "failed, after load_state_dict()");
}

void CscHook::SetLossScale(float scale) {
  CheckBetweenSteps("set_loss_scale()");
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0,
                    "loss scale: expected a positive number, seen ", scale);
  const float factor = scale / std::exchange(loss_scale_, scale);
  if (factor != 1.0F) layout_->Scale(factor);
}

CscState CscHook::Save() {
  CheckBetweenSteps("state_dict()");
  SelectNext();
  CscState state;
  state.step = step_;
  state.loss_scale = loss_scale_;
  state.selection = layout_->selection();
  for (size_t i = 0; i < layout_->names().size(); ++i) {
    state.residuals.push_back(layout_->ResidualOf(i));
  }
  return state;
}

void CscHook::Restore(CscState state) {
  // What they select is not wanted, nor whether they failed with the job.
  if (pending_ != nullptr) std::exchange(pending_, nullptr)->wait();
  norms_.reset();
  // Exchanges of a step that failed may not be over yet: they keep theirs.
  if (run_ != 0) layout_ = std::make_shared<CscLayout>(layout_->Fresh());
  run_ = finished_ = count_ = 0;
  step_ = state.step;
  loss_scale_ = state.loss_scale;
  layout_->Restore(std::move(state.residuals), std::move(state.selection));
}

}  // namespace gft
