#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace gft {

// What an operation gives: tensors or, if torch says so, lists of them. Both
// belong to the caller, and are there when the operation has ended.
class Results {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit Results(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)) {}
  // The value of the future if there are several.
  void SetLists(std::vector<std::vector<at::Tensor>> lists) {
    lists_ = std::move(lists);
  }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // All of them, one after another.
  std::vector<at::Tensor> Flat() const;
  // A future of their type.
  Future NewFuture() const;
  // Completes one. Its callbacks run here, and may throw.
  void Give(const Future& future) const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::vector<at::Tensor>> lists_;
};

}  // namespace gft
