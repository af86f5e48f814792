#include "hook_csc.h"

#include <ATen/ATen.h>

#include <utility>

#include "library.h"

namespace gft {

c10::intrusive_ptr<c10::ivalue::Future> CscHook::Run(c10d::GradBucket& bucket) {
  CheckDense(bucket, "csc");
  const at::NoGradGuard no_grad;
  if (bucket.getIndex() == 0) BeginStep();
  CscBucket& ours = layout_->Meet(bucket);
  ours.buffer = bucket.getBuffer();
  ++run_;
  if (bucket.isLast()) count_ = run_;
  const at::Tensor sent =
      layout_->Pack(&ours, group_.scale_before(ours.buffer), wire_);
  stats_.payload_bytes += sent.nbytes();
  // The closure lives until the future completes, and keeps the buckets alive.
  const auto back = [layout = layout_, &ours, sent, buffer = ours.buffer](
                        c10::ivalue::Future& done) -> c10::IValue {
    done.value();  // Rethrows the error of the exchange.
    layout->Unpack(ours, sent);
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
  TORCH_CHECK(run_ == 0, "the csc hook: step ", gf_csc_step(layout_->core()),
              " begins, but of the one before only ", finished_, " of ", run_,
              " buckets came to an end: its backward failed. What was kept "
              "back is lost; load a checkpoint, with load_state_dict()");
  SelectNext();
}

void CscHook::EndStep() {
  const at::NoGradGuard no_grad;
  const at::Tensor norms = layout_->EndStep(count_);
  stats_.chunks = stats_.selected_chunks = 0;
  for (const CscBucket& bucket : layout_->buckets()) {
    stats_.chunks += bucket.core->chunks;
    stats_.selected_chunks += bucket.core->selected_chunks;
  }
  if (stats_.chunks > 0) {
    norms_ = norms;
    stats_.payload_bytes += norms_.nbytes();
    pending_ = group_.StartSum(norms_);
  }
  ++stats_.steps;
  run_ = finished_ = count_ = 0;
}

void CscHook::SelectNext() {
  if (pending_ == nullptr) return;
  const HookGroup::Future pending = std::exchange(pending_, nullptr);
  pending->wait();
  pending->value();  // Rethrows the error of the exchange.
  const at::Tensor sums = std::exchange(norms_, {}).to(at::kCPU);
  Check(gf_csc_select(layout_->core(), sums.const_data_ptr<float>(),
                      static_cast<size_t>(sums.numel())),
        "selecting chunks");
}

void CscHook::CheckBetweenSteps(const char* what) const {
  TORCH_CHECK(
      run_ == 0, "the csc hook: ", what, " within step ",
      gf_csc_step(layout_->core()),
      ", expected between steps: after backward has ended, or, where it "
      "failed, after load_state_dict()");
}

void CscHook::SetLossScale(float scale) {
  CheckBetweenSteps("set_loss_scale()");
  layout_->SetLossScale(scale);
}

CscState CscHook::Save() {
  CheckBetweenSteps("state_dict()");
  SelectNext();
  return layout_->Save();
}

void CscHook::Restore(CscState state) {
  // The selection that the pending norms would make is not wanted, nor is their
  // error if the job has failed.
  if (pending_ != nullptr) std::exchange(pending_, nullptr)->wait();
  norms_.reset();
  run_ = finished_ = count_ = 0;
  // Exchanges of a failed step may still run: they keep the old layout alive.
  layout_ = std::make_shared<CscLayout>(model_, std::move(state));
}

}  // namespace gft
