#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <utility>
#include <vector>

namespace gft {

// The memory that one operation lends to the library, and what has to be copied
// back into tensors when it is over. A contiguous tensor in the host's memory
// is lent as it is; others go through a copy there, on a GPU's after waiting
// for its current stream. NOT thread-safe.
//
// No pointer is null, not of empty tensors either: null stands for a GPU.
class Lent {
 public:
  const void* Read(const at::Tensor& tensor);
  void* Write(const at::Tensor& tensor);
  void* ReadWrite(const at::Tensor& tensor);
  // Parts of one type, one after the other without gaps.
  const void* ReadAll(const std::vector<at::Tensor>& parts);
  void* WriteAll(const std::vector<at::Tensor>& parts);
  // to = from, element by element, as a collective writes; at once.
  static void Assign(const at::Tensor& to, const at::Tensor& from);
  // Keeps memory of the caller's alive.
  void Keep(at::Tensor tensor) { held_.push_back(std::move(tensor)); }

  // Brings results to where they belong. Any thread; once.
  void CopyBack();
  void Drop();

 private:
  void* Hold(at::Tensor tensor);

  c10::SmallVector<at::Tensor, 2> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // To, from.
};

// Whether two tensors' memories follow one another: `next` begins where
// `tensor` ends.
bool Adjoins(const at::Tensor& tensor, const at::Tensor& next);

}  // namespace gft
