#include "results.h"

#include <ATen/core/jit_type.h>

namespace gft {
namespace {

c10::TypePtr ListOfTensors() {
  static const auto* type =
      new c10::TypePtr(c10::ListType::create(c10::TensorType::get()));
  return *type;
}

c10::TypePtr ListOfLists() {
  static const auto* type =
      new c10::TypePtr(c10::ListType::create(ListOfTensors()));
  return *type;
}

// The GPUs of the results; users of the future wait on their streams.
std::vector<c10::Device> DevicesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu())
      devices.push_back(tensor.device());
  }
  return devices;
}

}  // namespace

std::vector<at::Tensor> Results::Flat() const {
  if (lists_.size() <= 1) return tensors_;
  std::vector<at::Tensor> all;
  for (const auto& list : lists_) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

Results::Future Results::NewFuture() const {
  return c10::make_intrusive<c10::ivalue::Future>(
      lists_.size() > 1 ? ListOfLists() : ListOfTensors(), DevicesOf(tensors_));
}

void Results::Give(const Future& future) const {
  if (lists_.size() > 1) {
    future->markCompleted(c10::IValue(lists_));
  } else {
    future->markCompleted(c10::IValue(tensors_));
  }
}

}  // namespace gft
