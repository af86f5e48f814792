#include "hook_csc_layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace gft {
namespace {

bool HasChunks(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

std::vector<const c10::TensorImpl*> IdentityOf(const c10d::GradBucket& bucket) {
  std::vector<const c10::TensorImpl*> identity;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    identity.push_back(parameter.unsafeGetTensorImpl());
  }
  return identity;
}

// A flat gradient in the shape of its parameter: DDP keeps the parameter's
// strides where they leave no gaps.
at::Tensor Shaped(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides(),
                               flat.storage_offset())
             : flat.view(parameter.sizes());
}

}  // namespace

CscLayout::CscLayout(std::vector<std::string> names,
                     std::vector<at::Tensor> parameters,
                     std::vector<bool> always_dense, int64_t chunk_elements)
    : names_(std::move(names)),
      parameters_(std::move(parameters)),
      always_dense_(std::move(always_dense)),
      chunk_elements_(chunk_elements),
      homeless_(parameters_.size()) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    index_of_[parameters_[i].unsafeGetTensorImpl()] = i;
  }
}

CscBucket& CscLayout::Meet(const c10d::GradBucket& bucket) {
  const size_t index = bucket.getIndex();
  TORCH_CHECK(index <= buckets_.size(), "the csc hook: bucket ", index,
              " comes before bucket ", buckets_.size(),
              ", expected them in order");
  const at::Tensor& buffer = bucket.getBuffer();
  if (index < buckets_.size()) {
    CscBucket& known = buckets_[index];
    if (known.identity == IdentityOf(bucket) &&
        known.elements == buffer.numel() &&
        known.type == buffer.scalar_type()) {
      return known;
    }
    Forget(index);
  }
  CscBucket learnt = Learn(bucket);
  TakeResiduals(learnt);
  TakeSelection(index, learnt);
  buckets_.push_back(std::move(learnt));
  return buckets_.back();
}

CscBucket CscLayout::Learn(const c10d::GradBucket& bucket) const {
  const at::Tensor& buffer = bucket.getBuffer();
  CscBucket learnt;
  learnt.identity = IdentityOf(bucket);
  learnt.type = buffer.scalar_type();
  learnt.elements = buffer.numel();
  learnt.chunk_elements = chunk_elements_;
  const std::vector<at::Tensor> gradients = bucket.getGradients();
  TORCH_CHECK(learnt.identity.size() == gradients.size(),
              "the csc hook: bucket ", bucket.getIndex(), " has ",
              learnt.identity.size(), " parameters, but ", gradients.size(),
              " gradients");
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto found = index_of_.find(learnt.identity[i]);
    TORCH_CHECK(found != index_of_.end(), "the csc hook: bucket ",
                bucket.getIndex(), " holds a parameter of shape ",
                gradients[i].sizes(),
                " that the model did not have when the hook was registered");
    learnt.segments.push_back(
        {found->second, gradients[i].storage_offset() - buffer.storage_offset(),
         gradients[i].numel()});
  }
  if (!HasChunks(learnt.type)) return learnt;
  const auto chunks = static_cast<size_t>(
      (learnt.elements + chunk_elements_ - 1) / chunk_elements_);
  learnt.always.assign(chunks, 0);
  learnt.selected.assign(chunks, 1);
  learnt.dirty.assign(chunks, 0);
  for (const CscSegment& segment : learnt.segments) {
    if (!always_dense_[segment.parameter] || segment.count == 0) continue;
    const int64_t last = (segment.begin + segment.count - 1) / chunk_elements_;
    for (int64_t c = segment.begin / chunk_elements_; c <= last; ++c) {
      learnt.always[c] = 1;
    }
  }
  learnt.residual =
      at::zeros({learnt.elements}, buffer.options().dtype(at::kFloat));
  return learnt;
}

void CscLayout::TakeResiduals(CscBucket& bucket) {
  if (bucket.chunks() == 0) return;
  for (const CscSegment& segment : bucket.segments) {
    at::Tensor& saved = homeless_[segment.parameter];
    if (!saved.defined()) continue;
    Shaped(bucket.residual.narrow(0, segment.begin, segment.count),
           parameters_[segment.parameter])
        .copy_(saved);
    saved.reset();
    // Which chunks it touches and is zero in does not matter.
    const int64_t end = segment.begin + segment.count;
    for (int64_t at = segment.begin; at < end; at += bucket.chunk_elements) {
      bucket.dirty[at / bucket.chunk_elements] = 1;
    }
    if (segment.count > 0) bucket.dirty[(end - 1) / bucket.chunk_elements] = 1;
  }
}

void CscLayout::TakeSelection(size_t index, CscBucket& bucket) const {
  if (index >= expected_.parameters.size() ||
      index >= expected_.selected.size()) {
    return;
  }
  std::vector<size_t> parameters;
  for (const CscSegment& segment : bucket.segments) {
    parameters.push_back(segment.parameter);
  }
  if (parameters != expected_.parameters[index] ||
      expected_.selected[index].size() != bucket.chunks()) {
    return;
  }
  bucket.selected = expected_.selected[index];
}

void CscLayout::Forget(size_t first) {
  for (size_t b = first; b < buckets_.size(); ++b) {
    for (const CscSegment& segment : buckets_[b].segments) {
      homeless_[segment.parameter] = ResidualOf(segment.parameter);
    }
  }
  buckets_.resize(std::min(first, buckets_.size()));
}

void CscLayout::EndStep(size_t count) {
  Forget(count);
  expected_ = {};
}

size_t CscLayout::chunks() const {
  size_t chunks = 0;
  for (const CscBucket& bucket : buckets_) chunks += bucket.chunks();
  return chunks;
}

at::Tensor CscLayout::ResidualOf(size_t parameter) const {
  for (const CscBucket& bucket : buckets_) {
    if (bucket.chunks() == 0) continue;
    for (const CscSegment& segment : bucket.segments) {
      if (segment.parameter != parameter) continue;
      const at::Tensor flat =
          bucket.residual.narrow(0, segment.begin, segment.count);
      return at::empty(parameters_[parameter].sizes(), at::kFloat)
          .copy_(Shaped(flat, parameters_[parameter]));
    }
  }
  return homeless_[parameter];
}

void CscLayout::Restore(std::vector<at::Tensor> residuals,
                        CscSelection selection) {
  buckets_.clear();
  homeless_ = std::move(residuals);
  expected_ = std::move(selection);
}

CscSelection CscLayout::selection() const {
  if (buckets_.empty()) return expected_;
  CscSelection selection;
  for (const CscBucket& bucket : buckets_) {
    selection.selected.push_back(bucket.selected);
    auto& parameters = selection.parameters.emplace_back();
    for (const CscSegment& segment : bucket.segments) {
      parameters.push_back(segment.parameter);
    }
  }
  return selection;
}

void CscLayout::Scale(float factor) {
  for (CscBucket& bucket : buckets_) {
    if (bucket.residual.defined()) bucket.residual.mul_(factor);
  }
  for (at::Tensor& residual : homeless_) {
    if (residual.defined()) residual = residual * factor;
  }
}

}  // namespace gft
