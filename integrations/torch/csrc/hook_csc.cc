#include "hook_csc.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "hook_csc_tensor.h"
#include "library.h"

namespace gft {
namespace {

void Unpack(CscBucket& bucket, const gf_csc* core) {
  const at::NoGradGuard no_grad;
  if (bucket.core->chunks == 0) return;
  if (bucket.by_tensors) return UnpackTensor(bucket, gf_csc_get_factors(core));
  int32_t bad = 0;
  Check(gf_csc_unpack(bucket.core, &bad), "unpacking a bucket");
  bucket.bad.fill_(bad != 0);
}

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> CscHook::Run(c10d::GradBucket& bucket) {
  CheckDense(bucket, "csc");
  const at::NoGradGuard no_grad;
  if (bucket.getIndex() == 0) BeginStep();
  CscBucket& ours = layout_->Meet(bucket);
  ours.buffer = bucket.getBuffer();
  ++run_;
  if (bucket.isLast()) count_ = run_;
  const at::Tensor sent = Pack(ours);
  stats_.payload_bytes += sent.nbytes();
  // The closure lives until the future completes, and keeps the buckets alive.
  const auto back = [layout = layout_, &ours, buffer = ours.buffer](
                        c10::ivalue::Future& done) -> c10::IValue {
    done.value();  // Rethrows the error of the exchange.
    Unpack(ours, layout->core());
    return buffer;
  };
  return group_.StartMean(sent)->then(back, c10::TensorType::get());
}

// Fills the buffer of which the group takes the mean.
at::Tensor CscHook::Pack(CscBucket& bucket) const {
  const double scale = group_.scale_before(bucket.buffer);
  if (bucket.core->chunks == 0) {  // It is sent whole, as it is.
    return scale == 1.0 ? bucket.buffer : bucket.buffer.mul_(scale);
  }
  const auto elements = static_cast<int64_t>(bucket.core->packed_elements);
  at::Tensor& storage = bucket.packed_storage;
  if (!storage.defined() || storage.numel() < elements) {
    storage = at::empty({elements}, bucket.buffer.options().dtype(wire_));
  }
  bucket.packed = storage.narrow(0, 0, elements);
  if (bucket.by_tensors) {
    PackTensor(bucket, gf_csc_get_factors(layout_->core()), scale);
  } else {
    Check(
        gf_csc_pack(bucket.core, bucket.buffer.mutable_data_ptr(),
                    bucket.packed.mutable_data_ptr(), static_cast<float>(scale),
                    bucket.norms.mutable_data_ptr<float>()),
        "packing a bucket");
  }
  return bucket.packed;
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
  layout_->EndStep(count_);
  std::deque<CscBucket>& buckets = layout_->buckets();
  at::Tensor bad = buckets.front().bad;
  bool on_host = false;
  stats_.chunks = stats_.selected_chunks = 0;
  for (const CscBucket& bucket : buckets) {
    stats_.chunks += bucket.core->chunks;
    stats_.selected_chunks += bucket.core->chunks - bucket.core->marks;
    bad = bad.logical_or(bucket.bad.to(bad.device()));
    on_host = on_host || (bucket.core->chunks > 0 && !bucket.by_tensors);
  }
  // Waits only for flags that are on the host.
  Check(gf_csc_end_step(layout_->core(), on_host && bad.item<bool>() ? 1 : 0),
        "ending a step");
  for (CscBucket& bucket : buckets) {
    if (bucket.by_tensors) {
      SkipTensor(bucket, gf_csc_get_factors(layout_->core()),
                 bad.to(bucket.bad.device()));
    }
    bucket.buffer.reset();
    bucket.packed.reset();
    bucket.means.reset();
  }
  if (stats_.chunks > 0) StartNorms();
  ++stats_.steps;
  run_ = finished_ = count_ = 0;
}

void CscHook::StartNorms() {
  std::vector<at::Tensor> norms;
  for (const CscBucket& bucket : layout_->buckets()) {
    norms.push_back(norms.empty() ? bucket.norms
                                  : bucket.norms.to(norms[0].device()));
  }
  norms_ = at::cat(norms);
  stats_.payload_bytes += norms_.nbytes();
  pending_ = group_.StartSum(norms_);
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
