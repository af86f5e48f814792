#pragma once

#include <memory>
#include <utility>

#include "hook.h"
#include "hook_csc_layout.h"
#include "hook_group.h"

namespace gft {

// Coarse-grained sparse communication (GradientFlow, arXiv 1902.06855) under
// DDP: the library's gf_csc in DDP's buckets, over any process group. The
// residual does not decay, since the hook does not know the optimiser.
//
//   DDP's bucket ─ Run() ─ pack ─ allreduce of the group ─ unpack ─ bucket
//   Finish() of the last ─ end of the step ─ allreduce of the norms ─┐
//   Run() of the next step's first bucket ─ select ──────────────────┘
// The allreduce of the norms hides behind the update and the next forward.
//
// Buckets of types other than float32, float16 and bfloat16 are sent whole.
class CscHook final : public Hook,
                      public std::enable_shared_from_this<CscHook> {
 public:
  CscHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType wire,
          CscModel model)
      : group_(std::move(group)),
        wire_(wire),
        model_(std::make_shared<CscModel>(std::move(model))) {
    stats_.chunk_elements = model_->config.chunk_elements;
    Restore({});
  }

  c10::intrusive_ptr<c10::ivalue::Future> Run(
      c10d::GradBucket& bucket) override;
  at::Tensor Finish(const c10::IValue& result) override;
  // Ends a step whose buckets were run but whose results nobody takes: that of
  // a rank without further inputs, which shadows the steps of the others.
  void FinishShadow();

  HookStats stats() const override { return stats_; }
  const std::shared_ptr<const CscModel>& model() const { return model_; }

  // SetLossScale(), Save() and Restore() are called between steps. The
  // gradients of the coming steps are multiplied by `scale`; the residual is
  // rescaled to match.
  void SetLossScale(float scale);
  // Waits for the norms of the last step.
  CscState Save();
  // Continues from a state of the same parameters. If a backward pass failed
  // midway, it is forgotten.
  void Restore(CscState state);

 private:
  void CheckBetweenSteps(const char* what) const;
  void BeginStep();
  void EndStep();
  void SelectNext();

  const HookGroup group_;
  const at::ScalarType wire_;
  const std::shared_ptr<const CscModel> model_;
  // Shared with the exchanges under way, which use its buckets.
  std::shared_ptr<CscLayout> layout_;
  // Buckets of the current step so far; 0 between steps.
  size_t run_ = 0;
  size_t finished_ = 0;
  size_t count_ = 0;  // Known once the last bucket has run.
  // The norms of all chunks, by bucket, while they are summed; null once used.
  at::Tensor norms_;
  HookGroup::Future pending_;
  HookStats stats_;
};

}  // namespace gft
