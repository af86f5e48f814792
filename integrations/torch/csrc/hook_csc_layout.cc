#include "hook_csc_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "library.h"

namespace gft {
namespace {

bool HasChunks(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

// A flat gradient in the shape of its parameter. Like DDP, it keeps the
// parameter's strides if they leave no gaps.
at::Tensor Shaped(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides(),
                               flat.storage_offset())
             : flat.view(parameter.sizes());
}

void CopyResiduals(const CscBucket& bucket, CscState* state) {
  for (size_t i = 0; i < bucket.kept.size(); ++i) {
    state->residuals[bucket.parameters[i]] =
        at::empty(bucket.kept[i].sizes(), at::kFloat).copy_(bucket.kept[i]);
  }
}

}  // namespace

CscLayout::CscLayout(std::shared_ptr<const CscModel> model, CscState state)
    : model_(std::move(model)), state_(std::move(state)) {
  for (size_t i = 0; i < model_->parameters.size(); ++i) {
    index_of_[model_->parameters[i].unsafeGetTensorImpl()] = i;
  }
  state_.residuals.resize(model_->parameters.size());
  gf_csc_config config = model_->config;
  config.step = state_.step;
  config.loss_scale = state_.loss_scale;
  gf_csc* core = nullptr;
  Check(gf_csc_open(&config, &core), "the csc hook");
  core_.reset(core);
}

CscBucket& CscLayout::Meet(const c10d::GradBucket& bucket) {
  const size_t index = bucket.getIndex();
  TORCH_CHECK(index <= buckets_.size(), "the csc hook: bucket ", index,
              " comes before bucket ", buckets_.size(),
              ", expected them in order");
  CscBucket seen = Describe(bucket);
  if (index < buckets_.size()) {
    CscBucket& known = buckets_[index];
    if (known.parameters == seen.parameters &&
        known.elements == seen.elements && known.type == seen.type) {
      return known;
    }
    Forget(index);
  }
  if (HasChunks(seen.type)) AddToCore(bucket, seen);
  return buckets_.emplace_back(std::move(seen));
}

CscBucket CscLayout::Describe(const c10d::GradBucket& bucket) const {
  CscBucket seen;
  seen.type = bucket.getBuffer().scalar_type();
  seen.elements = bucket.getBuffer().numel();
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != index_of_.end(), "the csc hook: bucket ",
                bucket.getIndex(), " holds a parameter of shape ",
                parameter.sizes(),
                " that the model did not have when the hook was registered");
    seen.parameters.push_back(found->second);
  }
  return seen;
}

void CscLayout::AddToCore(const c10d::GradBucket& from, CscBucket& bucket) {
  const at::Tensor& buffer = from.getBuffer();
  const auto width = static_cast<int64_t>(model_->config.chunk_elements);
  const int64_t chunks = (bucket.elements + width - 1) / width;
  const auto options = buffer.options().dtype(at::kFloat);
  bucket.by_tensors = model_->by_tensors || !buffer.is_cpu();
  bucket.residual = at::zeros({chunks * width}, options);
  bucket.norms = at::zeros({chunks}, options);
  std::vector<uint8_t> always(static_cast<size_t>(chunks), 0);
  const std::vector<at::Tensor> gradients = from.getGradients();
  TORCH_CHECK(gradients.size() == bucket.parameters.size(),
              "the csc hook: bucket ", from.getIndex(), " has ",
              bucket.parameters.size(), " parameters, but ", gradients.size(),
              " gradients");
  for (size_t i = 0; i < gradients.size(); ++i) {
    const size_t parameter = bucket.parameters[i];
    const int64_t count = gradients[i].numel();
    const int64_t begin =
        gradients[i].storage_offset() - buffer.storage_offset();
    bucket.kept.push_back(Shaped(bucket.residual.narrow(0, begin, count),
                                 model_->parameters[parameter]));
    at::Tensor& saved = state_.residuals[parameter];
    if (saved.defined()) bucket.kept[i].copy_(std::exchange(saved, {}));
    if (!model_->always_dense[parameter] || count == 0) continue;
    std::fill(always.begin() + begin / width,
              always.begin() + (begin + count - 1) / width + 1, 1);
  }
  const size_t index = from.getIndex();
  const bool saved = index < state_.selected.size() &&
                     state_.buckets[index] == bucket.parameters &&
                     state_.selected[index].size() == always.size();
  Check(gf_csc_add(
            core_.get(), static_cast<size_t>(bucket.elements),
            *DtypeOf(bucket.type),
            bucket.by_tensors ? nullptr : bucket.residual.data_ptr<float>(),
            always.data(), saved ? state_.selected[index].data() : nullptr,
            &bucket.core),
        "the csc hook");
}

void CscLayout::Forget(size_t first) {
  size_t in_core = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (b >= first) CopyResiduals(buckets_[b], &state_);
    if (b < first && buckets_[b].core != nullptr) ++in_core;
  }
  buckets_.resize(std::min(first, buckets_.size()));
  Check(gf_csc_drop(core_.get(), in_core), "the csc hook");
}

void CscLayout::EndStep(size_t count) {
  Forget(count);
  state_.selected.clear();
}

void CscLayout::SetLossScale(float scale) {
  float factor = 1.0F;
  const gf_status set = gf_csc_set_loss_scale(core_.get(), scale, &factor);
  TORCH_CHECK_VALUE(set == GF_OK, gf_last_error());
  state_.loss_scale = scale;
  for (CscBucket& bucket : buckets_) {
    if (bucket.by_tensors) bucket.residual.mul_(factor);
  }
  for (at::Tensor& residual : state_.residuals) {
    if (residual.defined()) residual = residual * factor;
  }
}

CscState CscLayout::Save() const {
  CscState state = state_;
  state.step = gf_csc_step(core_.get());
  if (buckets_.empty()) return state;
  state.buckets.clear();
  state.selected.clear();
  for (const CscBucket& bucket : buckets_) {
    state.buckets.push_back(bucket.parameters);
    auto& selected = state.selected.emplace_back();
    if (bucket.core == nullptr) continue;
    selected.assign(bucket.core->selected,
                    bucket.core->selected + bucket.core->chunks);
    CopyResiduals(bucket, &state);
  }
  return state;
}

}  // namespace gft
