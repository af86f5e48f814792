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

// A flat gradient in the shape of its parameter: DDP keeps the parameter's
// strides where they leave no gaps.
at::Tensor Shaped(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides(),
                               flat.storage_offset())
             : flat.view(parameter.sizes());
}

gf_csc* Open(gf_csc_config config, const CscState& state) {
  config.step = state.step;
  config.loss_scale = state.loss_scale;
  gf_csc* core = nullptr;
  Check(gf_csc_open(&config, &core), "the csc hook");
  return core;
}

}  // namespace

const uint8_t* CscBucket::selected() const {
  size_t chunks = 0;
  return gf_csc_selected(core, &chunks);
}

CscModel::CscModel(std::vector<std::string> names_,
                   std::vector<at::Tensor> parameters_,
                   std::vector<bool> always_dense_)
    : names(std::move(names_)),
      parameters(std::move(parameters_)),
      always_dense(std::move(always_dense_)) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_of[parameters[i].unsafeGetTensorImpl()] = i;
  }
}

CscLayout::CscLayout(std::shared_ptr<const CscModel> model,
                     gf_csc_config config, bool by_tensors, CscState state)
    : model_(std::move(model)),
      chunk_elements_(static_cast<int64_t>(config.chunk_elements)),
      by_tensors_(by_tensors),
      core_(Open(config, state)),
      state_(std::move(state)) {
  state_.residuals.resize(model_->parameters.size());
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
  buckets_.push_back(std::move(seen));
  return buckets_.back();
}

CscBucket CscLayout::Describe(const c10d::GradBucket& bucket) const {
  CscBucket seen;
  seen.type = bucket.getBuffer().scalar_type();
  seen.elements = bucket.getBuffer().numel();
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const auto found = model_->index_of.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK(found != model_->index_of.end(), "the csc hook: bucket ",
                bucket.getIndex(), " holds a parameter of shape ",
                parameter.sizes(),
                " that the model did not have when the hook was registered");
    seen.parameters.push_back(found->second);
  }
  return seen;
}

void CscLayout::AddToCore(const c10d::GradBucket& from, CscBucket& bucket) {
  const at::Tensor& buffer = from.getBuffer();
  const int64_t width = chunk_elements_;
  const int64_t chunks = (bucket.elements + width - 1) / width;
  const auto options = buffer.options().dtype(at::kFloat);
  bucket.by_tensors = by_tensors_ || !buffer.is_cpu();
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
    const int64_t begin =
        gradients[i].storage_offset() - buffer.storage_offset();
    const int64_t count = gradients[i].numel();
    bucket.kept.push_back(Shaped(bucket.residual.narrow(0, begin, count),
                                 model_->parameters[parameter]));
    at::Tensor& saved = state_.residuals[parameter];
    if (saved.defined()) bucket.kept[i].copy_(std::exchange(saved, {}));
    if (!model_->always_dense[parameter] || count == 0) continue;
    std::fill(always.begin() + begin / width,
              always.begin() + (begin + count - 1) / width + 1, 1);
  }
  Check(
      gf_csc_add(core_.get(), static_cast<size_t>(bucket.elements),
                 *DtypeOf(bucket.type),
                 bucket.by_tensors ? nullptr
                                   : bucket.residual.mutable_data_ptr<float>(),
                 always.data(), &bucket.core),
      "the csc hook");
  const CscSelection& saved = state_.selection;
  const size_t index = from.getIndex();
  if (index < saved.parameters.size() && index < saved.selected.size() &&
      saved.parameters[index] == bucket.parameters &&
      saved.selected[index].size() == always.size()) {
    Check(gf_csc_restore(bucket.core, saved.selected[index].data(),
                         saved.selected[index].size()),
          "the csc hook");
  }
}

void CscLayout::TakeResiduals(const CscBucket& bucket,
                              std::vector<at::Tensor>* residuals) {
  for (size_t i = 0; i < bucket.kept.size(); ++i) {
    (*residuals)[bucket.parameters[i]] =
        at::empty(bucket.kept[i].sizes(), at::kFloat).copy_(bucket.kept[i]);
  }
}

void CscLayout::Forget(size_t first) {
  size_t in_core = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (b >= first) {
      TakeResiduals(buckets_[b], &state_.residuals);
    } else if (buckets_[b].core != nullptr) {
      ++in_core;
    }
  }
  buckets_.resize(std::min(first, buckets_.size()));
  Check(gf_csc_drop(core_.get(), in_core), "the csc hook");
}

void CscLayout::EndStep(size_t count) {
  Forget(count);
  state_.selection = {};
}

void CscLayout::SetLossScale(float scale) {
  float factor = 1.0F;
  TORCH_CHECK_VALUE(gf_csc_set_loss_scale(core_.get(), scale, &factor) == GF_OK,
                    gf_last_error());
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
  if (!buckets_.empty()) state.selection = {};
  for (const CscBucket& bucket : buckets_) {
    const auto chunks = static_cast<size_t>(bucket.chunks());
    const uint8_t* selected = chunks == 0 ? nullptr : bucket.selected();
    state.selection.parameters.push_back(bucket.parameters);
    state.selection.selected.emplace_back(selected, selected + chunks);
    TakeResiduals(bucket, &state.residuals);
  }
  return state;
}

}  // namespace gft
