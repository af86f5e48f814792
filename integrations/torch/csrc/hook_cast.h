#pragma once

#include <vector>

#include "hook.h"
#include "hook_group.h"

namespace gft {

// Float16 or bfloat16 on the wire; gradients keep their type. If the backend is
// GradientFlow's, it converts as it sends and sums in float32. With any other
// backend, buckets are converted to 16 bits, summed in 16 bits, and converted
// back by the thread that completes them. Buckets of 16-bit gradients are sent
// as they are.
class CastHook final : public Hook {
 public:
  // `wire` is at::kHalf or at::kBFloat16.
  CastHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType wire)
      : group_(std::move(group)), wire_(wire) {}

  c10::intrusive_ptr<c10::ivalue::Future> Run(
      c10d::GradBucket& bucket) override;
  at::Tensor Finish(const c10::IValue& result) override;
  HookStats stats() const override { return stats_; }

 private:
  // The buffer into which bucket `index` is converted; kept from step to step.
  at::Tensor Packed(size_t index, const at::Tensor& buffer);

  const HookGroup group_;
  const at::ScalarType wire_;
  std::vector<at::Tensor> packed_;
  HookStats stats_;
};

}  // namespace gft
