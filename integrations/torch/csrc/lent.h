#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <utility>
#include <vector>

namespace gft {

// The memory that one operation lends to the library, and what has to be copied
// back into tensors afterwards. A contiguous tensor in host memory is lent as
// it is. Any other tensor goes through a copy in host memory; a GPU's tensor is
// copied after a wait for the GPU's current stream. NOT thread-safe.
//
// No pointer is null, even for empty tensors, since null stands for a GPU.
class Lent {
 public:
  const void* Read(const at::Tensor& tensor);
  void* Write(const at::Tensor& tensor);
  void* ReadWrite(const at::Tensor& tensor);
  // Lends parts of one type, one after the other without gaps.
  const void* ReadAll(const std::vector<at::Tensor>& parts);
  void* WriteAll(const std::vector<at::Tensor>& parts);
  // Copies `from` to `to` at once, element by element, as a collective writes.
  static void Assign(const at::Tensor& to, const at::Tensor& from);
  // Keeps memory of the caller's alive.
  void Keep(at::Tensor tensor) { held_.push_back(std::move(tensor)); }

  // Copies results to where they belong. May be called once, on any thread.
  void CopyBack();
  void Drop();

 private:
  void* Hold(at::Tensor tensor);

  c10::SmallVector<at::Tensor, 2> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // To, from.
};

// Whether `next` begins in memory where `tensor` ends.
bool Adjoins(const at::Tensor& tensor, const at::Tensor& next);

}  // namespace gft
