#include "hook_csc_layout.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
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

// Adds the bucket of these parameters, which lie in it one after another.
// Throws c10::ValueError if `selected` (may be undefined) does not fit.
gf_csc_bucket* Add(gf_csc* core, const CscModel& model,
                   const std::vector<size_t>& parameters,
                   gf_csc_bucket_config config, const at::Tensor& selected) {
  std::vector<gf_tensor> tensors;
  for (const size_t i : parameters) {
    gf_tensor_init(&tensors.emplace_back());
    tensors.back().elements = static_cast<size_t>(model.parameters[i].numel());
    tensors.back().always_dense = model.always_dense[i] ? 1 : 0;
  }
  config.tensors = tensors.data();
  config.tensor_count = tensors.size();
  if (selected.defined()) {
    config.selected = selected.const_data_ptr<uint8_t>();
    config.selected_count = static_cast<size_t>(selected.numel());
  }
  gf_csc_bucket* bucket = nullptr;
  const gf_status added = gf_csc_add(core, &config, &bucket);
  TORCH_CHECK_VALUE(added == GF_OK, "the csc hook: ", gf_last_error());
  return bucket;
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
  core_.reset(Open(config));
}

gf_csc* CscLayout::Open(gf_csc_config config) {
  const std::vector<at::Tensor>& all = model_->parameters;
  const at::Device device = all.empty() ? device_ : all.front().device();
  gf_csc* core = nullptr;
  if (device.is_cuda() && !model_->staged &&
      std::all_of(all.begin(), all.end(), [&](const at::Tensor& parameter) {
        return parameter.device() == device;
      })) {
    config.cuda_device = device.index();
    const gf_status opened = gf_csc_open(&config, &core);
    if (opened == GF_OK) {
      device_ = device;
      return core;
    }
    // Any failure is an error, except that the library cannot use the device.
    TORCH_CHECK_VALUE(opened != GF_INVALID_ARGUMENT,
                      "the csc hook: ", gf_last_error());
    if (opened != GF_UNIMPLEMENTED) gft::Check(opened, "opening the csc hook");
    TORCH_WARN_ONCE("the csc hook: gradients go through host memory: ",
                    gf_last_error());
    config.cuda_device = -1;
  }
  const gf_status opened = gf_csc_open(&config, &core);
  TORCH_CHECK_VALUE(opened == GF_OK, "the csc hook: ", gf_last_error());
  return core;
}

void* CscLayout::Stream() const {
  if (device_.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device_.type())
      .getStream(device_)
      .native_handle();
}

CscLayout::~CscLayout() {
  try {
    AwaitDevice();
  } catch (const std::exception&) {
    // A device that has failed, or is gone at the end of the process, does no
    // more work.
  }
}

void CscLayout::AwaitDevice() const {
  if (device_.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device_.type())
      .synchronizeDevice(device_.index());
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
  const size_t index = from.getIndex();
  const bool cut = IsGradientType(buffer.scalar_type());
  const auto options = at::device(device_).dtype(at::kFloat);
  CscBucket bucket;
  if (cut) {
    int64_t begin = 0;
    bucket.residual = at::zeros({buffer.numel()}, options);
    for (const size_t i : parameters) {
      const at::Tensor& parameter = model_->parameters[i];
      bucket.kept.push_back(Shaped(
          bucket.residual.narrow(0, begin, parameter.numel()), parameter));
      begin += parameter.numel();
      at::Tensor& saved = state_.residuals[i];
      if (saved.defined()) bucket.kept.back().copy_(std::exchange(saved, {}));
    }
    TORCH_CHECK(begin == buffer.numel(), "the csc hook: bucket ", index,
                " has ", buffer.numel(), " elements, its parameters ", begin);
  }
  const bool saved = cut && index < state_.selected.size() &&
                     state_.buckets[index] == parameters;
  gf_csc_bucket_config config = {};
  config.dtype = cut ? *DtypeOf(buffer.scalar_type()) : GF_FLOAT32;
  if (cut) config.residual = bucket.residual.mutable_data_ptr<float>();
  bucket.core =
      Add(core_.get(), *model_, cut ? parameters : std::vector<size_t>(),
          config, saved ? state_.selected[index] : at::Tensor());
  bucket.norms =
      at::zeros({static_cast<int64_t>(bucket.core->chunks)}, options);
  bucket.parameters = std::move(parameters);
  return bucket;
}

at::Tensor CscLayout::Pack(CscBucket* bucket, double scale,
                           at::ScalarType wire) const {
  const at::Tensor& buffer = bucket->buffer;
  if (bucket->core->chunks == 0) {  // It is sent whole, as it is.
    return scale == 1.0 ? buffer : buffer.mul_(scale);
  }
  const auto copy_to = [](const at::Tensor& from, at::Device device) {
    return from.to(device, from.scalar_type(), /*non_blocking=*/false,
                   /*copy=*/true);
  };
  const bool staged = Staged(*bucket);
  bucket->grads = staged ? copy_to(buffer, device_) : buffer;
  const auto elements = static_cast<int64_t>(bucket->core->packed_elements);
  at::Tensor& storage = bucket->packed_storage;
  if (!storage.defined() || storage.numel() < elements) {
    storage = at::empty({elements}, at::device(device_).dtype(wire));
  }
  bucket->packed = storage.narrow(0, 0, elements);
  gft::Check(
      gf_csc_pack(bucket->core, bucket->grads.mutable_data_ptr(),
                  bucket->packed.mutable_data_ptr(), static_cast<float>(scale),
                  bucket->norms.mutable_data_ptr<float>(), Stream()),
      "packing a bucket");
  return staged ? copy_to(bucket->packed, buffer.device()) : bucket->packed;
}

void CscLayout::Unpack(const CscBucket& bucket, const at::Tensor& mean) const {
  const at::NoGradGuard no_grad;
  if (bucket.core->chunks == 0) return;
  const bool staged = Staged(bucket);
  if (staged) bucket.packed.copy_(mean);
  gft::Check(gf_csc_unpack(bucket.core, Stream()), "unpacking a bucket");
  if (staged) bucket.buffer.copy_(bucket.grads);
}

void CscLayout::Forget(size_t first) {
  for (size_t b = first; b < buckets_.size(); ++b) {
    CopyResiduals(buckets_[b], &state_);
  }
  if (first < buckets_.size()) AwaitDevice();
  buckets_.resize(std::min(first, buckets_.size()));
  gft::Check(gf_csc_drop(core_.get(), buckets_.size()), "the csc hook");
}

at::Tensor CscLayout::EndStep(size_t count) {
  Forget(count);
  state_.selected.clear();
  gft::Check(gf_csc_end_step(core_.get(), Stream()), "ending a step");
  const at::Device device = buckets_.front().buffer.device();
  std::vector<at::Tensor> norms;
  for (CscBucket& bucket : buckets_) {
    norms.push_back(bucket.norms);
    bucket.buffer.reset();
    bucket.grads.reset();
    bucket.packed.reset();
  }
  return at::cat(norms).to(device);
}

void CscLayout::SetLossScale(float scale) {
  float factor = 1.0F;
  const gf_status set =
      gf_csc_set_loss_scale(core_.get(), scale, Stream(), &factor);
  TORCH_CHECK_VALUE(set == GF_OK, gf_last_error());
  state_.loss_scale = scale;
  for (at::Tensor& residual : state_.residuals) {
    if (residual.defined()) residual = residual * factor;
  }
}

void CscLayout::Check(const std::shared_ptr<const CscModel>& model,
                      const CscState& state) {
  const CscLayout layout(model, {state.step, state.loss_scale, {}, {}, {}});
  for (size_t b = 0; b < state.buckets.size(); ++b) {
    if (state.selected[b].numel() == 0) continue;  // It was sent whole.
    gf_csc_bucket_config config = {};
    config.dtype = GF_FLOAT32;
    Add(layout.core(), *model, state.buckets[b], config, state.selected[b]);
  }
  TORCH_CHECK_VALUE(gf_csc_check(layout.core()) == GF_OK,
                    "the csc hook: ", gf_last_error());
}

CscState CscLayout::Save() const {
  CscState state = state_;
  state.step = gf_csc_step(core_.get());
  if (buckets_.empty()) return state;
  state.buckets.clear();
  state.selected.clear();
  for (const CscBucket& bucket : buckets_) {
    state.buckets.push_back(bucket.parameters);
    const auto chunks = static_cast<int64_t>(bucket.core->chunks);
    state.selected.push_back(at::empty({chunks}, at::kByte));
    std::copy_n(bucket.core->selected, chunks,
                state.selected.back().mutable_data_ptr<uint8_t>());
    CopyResiduals(bucket, &state);
  }
  return state;
}

}  // namespace gft
