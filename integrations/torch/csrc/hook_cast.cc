#include "hook_cast.h"

#include <ATen/ATen.h>

namespace gft {

at::Tensor CastHook::Packed(size_t index, const at::Tensor& buffer) {
  if (packed_.size() <= index) packed_.resize(index + 1);
  at::Tensor& packed = packed_[index];
  if (!packed.defined() || packed.numel() != buffer.numel() ||
      packed.device() != buffer.device()) {
    packed = at::empty({buffer.numel()}, buffer.options().dtype(wire_));
  }
  return packed;
}

c10::intrusive_ptr<c10::ivalue::Future> CastHook::Run(
    c10d::GradBucket& bucket) {
  CheckDense(bucket, "16-bit");
  const at::NoGradGuard no_grad;
  const at::Tensor buffer = bucket.getBuffer();
  // What is no larger than the wire's type travels as it is.
  const size_t wire_bytes = c10::elementSize(wire_);
  const bool narrow = buffer.element_size() <= wire_bytes;
  const size_t bytes = narrow ? buffer.element_size() : wire_bytes;
  stats_.payload_bytes += static_cast<size_t>(buffer.numel()) * bytes;
  if (bucket.isLast()) ++stats_.steps;
  if (!narrow && group_.ConvertsTo(wire_, buffer)) {
    return group_.StartMeanAs(wire_, buffer);
  }
  const at::Tensor sent = narrow ? buffer : Packed(bucket.getIndex(), buffer);
  const double scale = group_.scale_before(sent);
  if (!narrow) {
    Convert(buffer, sent, scale);
  } else if (scale != 1.0) {
    sent.mul_(scale);
  }
  const auto back = [buffer, sent](c10::ivalue::Future& done) -> c10::IValue {
    done.value();  // Rethrows the error of the exchange.
    if (!sent.is_same(buffer)) {
      const at::NoGradGuard no_grad_here;
      Convert(sent, buffer, 1.0);
    }
    return buffer;
  };
  return group_.StartMean(sent)->then(back, c10::TensorType::get());
}

at::Tensor CastHook::Finish(const c10::IValue& result) {
  return result.isTensor() ? result.toTensor() : result.toTensorVector().at(0);
}

}  // namespace gft
