#include "hook_group.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "backend.h"
#include "library.h"

namespace gft {
namespace {

// Null if another backend serves the tensor's device, or if the group's is
// wrapped for debugging.
Backend* OursFor(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  return dynamic_cast<Backend*>(group.getBackend(tensor.device().type()).get());
}

bool HasKernel(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() &&
         IsGradientType(tensor.scalar_type());
}

}  // namespace

double HookGroup::scale_before(const at::Tensor& tensor) const {
  return OursFor(*group_, tensor) != nullptr ? 1.0 : 1.0 / size();
}

HookGroup::Future HookGroup::Start(at::Tensor tensor,
                                   c10d::ReduceOp::RedOpType op) const {
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return group_->allreduce(tensors, options)->getFuture();
}

HookGroup::Future HookGroup::StartMean(at::Tensor tensor) const {
  const bool takes_means = OursFor(*group_, tensor) != nullptr;
  return Start(std::move(tensor),
               takes_means ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM);
}

HookGroup::Future HookGroup::StartSum(at::Tensor tensor) const {
  return Start(std::move(tensor), c10d::ReduceOp::SUM);
}

bool HookGroup::ConvertsTo(at::ScalarType wire,
                           const at::Tensor& tensor) const {
  return wire != at::kFloat && tensor.is_cpu() &&
         tensor.scalar_type() == at::kFloat &&
         OursFor(*group_, tensor) != nullptr;
}

HookGroup::Future HookGroup::StartMeanAs(at::ScalarType wire,
                                         const at::Tensor& tensor) const {
  return OursFor(*group_, tensor)
      ->AllreduceVia(wire, tensor, c10d::ReduceOp::AVG)
      ->getFuture();
}

void Convert(const at::Tensor& src, at::Tensor dst, double scale) {
  if (HasKernel(src) && HasKernel(dst)) {
    Check(
        gf_convert(src.const_data_ptr(), *DtypeOf(src.scalar_type()),
                   dst.mutable_data_ptr(), *DtypeOf(dst.scalar_type()),
                   static_cast<size_t>(src.numel()), static_cast<float>(scale)),
        "converting a bucket");
  } else if (scale == 1.0) {
    dst.copy_(src);
  } else {
    at::mul_out(dst, src, at::scalar_tensor(scale, src.options()));
  }
}

}  // namespace gft
