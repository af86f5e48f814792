#include "lent.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <numeric>

namespace gft {
namespace {

char an_address = 0;

// Whether the bytes in memory are the tensor's elements in their logical order.
bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

at::Tensor HostLike(const at::Tensor& tensor, int64_t elements) {
  return at::empty({elements}, at::device(at::kCPU).dtype(tensor.dtype()));
}

// Work that was submitted to the stream may still read or write the memory.
void WaitForStream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.getStream(tensor.device()).synchronize();
}

void Copy(const at::Tensor& to, const at::Tensor& from) {
  // Tensors that autograd or inference mode watch are written nevertheless, as
  // by any other collective.
  const at::AutoDispatchBelowADInplaceOrView plain;
  to.copy_(from.view(to.sizes()), /*non_blocking=*/false);
}

bool AreOneBlock(const std::vector<at::Tensor>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!IsPlain(parts[i])) return false;
    if (i > 0 && !Adjoins(parts[i - 1], parts[i])) return false;
  }
  return !parts.empty();
}

int64_t ElementsOf(const std::vector<at::Tensor>& parts) {
  return std::accumulate(
      parts.begin(), parts.end(), int64_t{0},
      [](int64_t sum, const at::Tensor& part) { return sum + part.numel(); });
}

}  // namespace

bool Adjoins(const at::Tensor& tensor, const at::Tensor& next) {
  return static_cast<const char*>(tensor.const_data_ptr()) + tensor.nbytes() ==
         next.const_data_ptr();
}

void* Lent::Hold(at::Tensor tensor) {
  // mutable_data_ptr() would copy memory that was cloned lazily. Only results
  // need that, and they have it done before.
  void* data = const_cast<void*>(tensor.const_data_ptr());
  held_.push_back(std::move(tensor));
  return data == nullptr ? &an_address : data;
}

const void* Lent::Read(const at::Tensor& tensor) {
  if (IsPlain(tensor)) return Hold(tensor);
  at::Tensor host = HostLike(tensor, tensor.numel());
  Copy(host.view(tensor.sizes()), tensor);
  return Hold(std::move(host));
}

void* Lent::Write(const at::Tensor& tensor) {
  if (IsPlain(tensor)) {
    tensor.mutable_data_ptr();
    return Hold(tensor);
  }
  WaitForStream(tensor);
  at::Tensor host = HostLike(tensor, tensor.numel());
  copies_.emplace_back(tensor, host);
  return Hold(std::move(host));
}

void* Lent::ReadWrite(const at::Tensor& tensor) {
  void* data = Write(tensor);
  if (!IsPlain(tensor)) Copy(held_.back().view(tensor.sizes()), tensor);
  return data;
}

const void* Lent::ReadAll(const std::vector<at::Tensor>& parts) {
  if (AreOneBlock(parts)) {
    held_.append(parts.begin() + 1, parts.end());
    return Hold(parts.front());
  }
  at::Tensor host = HostLike(parts.front(), ElementsOf(parts));
  int64_t at = 0;
  for (const at::Tensor& part : parts) {
    Copy(host.narrow(0, at, part.numel()).view(part.sizes()), part);
    at += part.numel();
  }
  return Hold(std::move(host));
}

void* Lent::WriteAll(const std::vector<at::Tensor>& parts) {
  if (AreOneBlock(parts)) {
    for (const at::Tensor& part : parts) part.mutable_data_ptr();
    held_.append(parts.begin() + 1, parts.end());
    return Hold(parts.front());
  }
  at::Tensor host = HostLike(parts.front(), ElementsOf(parts));
  int64_t at = 0;
  for (const at::Tensor& part : parts) {
    WaitForStream(part);
    copies_.emplace_back(part, host.narrow(0, at, part.numel()));
    at += part.numel();
  }
  return Hold(std::move(host));
}

void Lent::Assign(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_same(from)) Copy(to, from.reshape(to.sizes()));
}

void Lent::CopyBack() {
  for (const auto& [to, from] : copies_) {
    const c10::OptionalDeviceGuard guard(
        to.is_cpu() ? std::nullopt : std::make_optional(to.device()));
    Copy(to, from);
  }
}

void Lent::Drop() {
  held_.clear();
  copies_.clear();
}

}  // namespace gft
