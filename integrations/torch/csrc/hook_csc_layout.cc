#include "hook_csc_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "library.h"

namespace gft {
namespace {

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
  std::vector<size_t> parameters = ParametersOf(bucket);
  if (index < buckets_.size()) {
    if (buckets_[index].parameters == parameters) return buckets_[index];
    Forget(index);
  }
  return buckets_.emplace_back(Learn(bucket, std::move(parameters)));
}

std::vector<size_t> CscLayout::ParametersOf(
    const c10d::GradBucket& bucket) const {
  std::vector<size_t> parameters;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != index_of_.end(), "the csc hook: bucket ",
                bucket.getIndex(), " holds a parameter of shape ",
                parameter.sizes(),
                " that the model did not have when the hook was registered");
    parameters.push_back(found->second);
  }
  return parameters;
}

CscBucket CscLayout::Learn(const c10d::GradBucket& from,
                           std::vector<size_t> parameters) {
  const at::Tensor& buffer = from.getBuffer();
  const bool cut = IsGradientType(buffer.scalar_type());
  const auto width = static_cast<int64_t>(model_->config.chunk_elements);
  const int64_t elements = cut ? buffer.numel() : 0;
  const int64_t chunks = (elements + width - 1) / width;
  const auto options = buffer.options().dtype(at::kFloat);
  CscBucket bucket;
  bucket.by_tensors = chunks > 0 && (model_->by_tensors || !buffer.is_cpu());
  bucket.residual = at::zeros({chunks * width}, options);
  bucket.norms = at::zeros({chunks}, options);
  bucket.bad = at::zeros({}, options.dtype(at::kBool));
  std::vector<uint8_t> always(static_cast<size_t>(chunks), 0);
  const std::vector<at::Tensor> gradients = from.getGradients();
  TORCH_CHECK(gradients.size() == parameters.size(), "the csc hook: bucket ",
              from.getIndex(), " has ", parameters.size(), " parameters, but ",
              gradients.size(), " gradients");
  for (size_t i = 0; cut && i < gradients.size(); ++i) {
    const int64_t count = gradients[i].numel();
    const int64_t begin =
        gradients[i].storage_offset() - buffer.storage_offset();
    bucket.kept.push_back(Shaped(bucket.residual.narrow(0, begin, count),
                                 model_->parameters[parameters[i]]));
    at::Tensor& saved = state_.residuals[parameters[i]];
    if (saved.defined()) bucket.kept[i].copy_(std::exchange(saved, {}));
    if (!model_->always_dense[parameters[i]] || count == 0) continue;
    std::fill(always.begin() + begin / width,
              always.begin() + (begin + count - 1) / width + 1, 1);
  }
  const size_t index = from.getIndex();
  const bool saved = index < state_.selected.size() &&
                     state_.buckets[index] == parameters &&
                     state_.selected[index].size() == always.size();
  Check(gf_csc_add(
            core_.get(), static_cast<size_t>(elements),
            cut ? *DtypeOf(buffer.scalar_type()) : GF_FLOAT32,
            bucket.by_tensors ? nullptr : bucket.residual.data_ptr<float>(),
            always.data(), saved ? state_.selected[index].data() : nullptr,
            &bucket.core),
        "the csc hook");
  bucket.parameters = std::move(parameters);
  return bucket;
}

void CscLayout::Forget(size_t first) {
  for (size_t b = first; b < buckets_.size(); ++b) {
    CopyResiduals(buckets_[b], &state_);
  }
  buckets_.resize(std::min(first, buckets_.size()));
  Check(gf_csc_drop(core_.get(), buckets_.size()), "the csc hook");
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
    state.selected.emplace_back(bucket.core->selected,
                                bucket.core->selected + bucket.core->chunks);
    CopyResiduals(bucket, &state);
  }
  return state;
}

}  // namespace gft
