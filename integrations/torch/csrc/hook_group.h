#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace gft {

// Sums and means over the ranks of a process group of any backend. Calls come
// in the same order on all ranks.
class HookGroup {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit HookGroup(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)) {}

  int size() const { return group_->getSize(); }

  // What to multiply by before StartMean(), so that means come out: 1 where
  // the backend takes means itself, with sums in float32; else 1 / size.
  double scale_before(const at::Tensor& tensor) const;

  // In place, of a contiguous tensor multiplied with scale_before(). The
  // future holds tensors, or an error, and is followed by Then().
  Future StartMean(at::Tensor tensor) const;
  Future StartSum(at::Tensor tensor) const;

  // Whether the backend itself converts `tensor`, on its way, to `wire`.
  bool ConvertsTo(at::ScalarType wire, const at::Tensor& tensor) const;
  // In place, with no factor before it. REQUIRES: ConvertsTo().
  Future StartMeanAs(at::ScalarType wire, const at::Tensor& tensor) const;

 private:
  Future Start(at::Tensor tensor, c10d::ReduceOp::RedOpType op) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

// dst = scale * src, both flat and of n elements, of any floating type and
// device.
void Convert(const at::Tensor& src, at::Tensor dst, double scale);

}  // namespace gft
