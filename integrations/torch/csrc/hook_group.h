#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace gft {

// Sums and means over the ranks of a process group with any backend. All ranks
// make the calls in the same order.
class HookGroup {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit HookGroup(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)) {}

  int size() const { return group_->getSize(); }

  // The factor to apply before StartMean(), so that the result is a mean: 1 if
  // the backend takes means itself, with sums in float32; else 1 / size.
  double scale_before(const at::Tensor& tensor) const;

  // Works in place on a contiguous tensor that has been multiplied by
  // scale_before(). The future holds tensors or an error; Then() continues it.
  Future StartMean(at::Tensor tensor) const;
  Future StartSum(at::Tensor tensor) const;

  // Whether the backend itself converts `tensor` to `wire` on its way.
  bool ConvertsTo(at::ScalarType wire, const at::Tensor& tensor) const;
  // Works in place, without a factor beforehand. REQUIRES: ConvertsTo().
  Future StartMeanAs(at::ScalarType wire, const at::Tensor& tensor) const;

 private:
  Future Start(at::Tensor tensor, c10d::ReduceOp::RedOpType op) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

// dst = scale * src; both are flat, with equally many elements, of any floating
// type and on any device.
void Convert(const at::Tensor& src, at::Tensor dst, double scale);

}  // namespace gft
