#pragma once

#include <memory>
#include <vector>

#include "hook.h"
#include "hook_csc_layout.h"
#include "hook_csc_ops.h"
#include "hook_group.h"

namespace gft {

struct CscConfig {
  double sparsity = 0.85;  // Share of chunks kept back, [0, 1).
  int64_t chunk_elements = 32000;
  uint64_t warmup_steps = 0;  // Sparsity rises linearly over these.
  at::ScalarType wire = at::kHalf;
  bool tensor_ops = false;  // Torch's operators on host memory, too.
};

// What a rank needs to go on where it stopped.
struct CscState {
  uint64_t step = 0;  // That comes next.
  float loss_scale = 1.0F;
  CscSelection selection;             // For that step.
  std::vector<at::Tensor> residuals;  // By parameter; undefined: nothing.
};

// Coarse-grained sparse communication (GradientFlow, arXiv 1902.06855) under
// DDP. Every bucket is cut into equal chunks. A step sends the k of all chunks
// whose L1 norms, summed over the ranks, were largest in the step before; the
// gradients of the others become zero and wait in the residual, undecayed, as
// fits an optimiser that is not known. Selected chunks of a bucket travel
// together, in 16 bits if so wished, in one allreduce.
//
// Norms of what was sent are taken from the means, those of what was not from
// the local residual; one small allreduce of them starts as backward ends, in
// Finish() of the last bucket, and is waited for in the next step's first
// Run(): it hides behind the update and the next forward.
//
// Buckets of types other than float32, float16 and bfloat16 are sent whole.
class CscHook final : public Hook,
                      public std::enable_shared_from_this<CscHook> {
 public:
  CscHook(c10::intrusive_ptr<c10d::ProcessGroup> group, const CscConfig& config,
          CscLayout layout)
      : group_(std::move(group)),
        config_(config),
        layout_(std::make_shared<CscLayout>(std::move(layout))) {
    stats_.chunk_elements = static_cast<uint64_t>(config.chunk_elements);
  }

  c10::intrusive_ptr<c10::ivalue::Future> Run(
      c10d::GradBucket& bucket) override;
  at::Tensor Finish(const c10::IValue& result) override;
  // Ends a step whose buckets were run but whose results nobody takes: on a
  // rank that has no more inputs and shadows the others' steps.
  void FinishShadow();

  HookStats stats() const override { return stats_; }
  const CscLayout& layout() const { return *layout_; }

  // What the gradients of the coming steps are multiplied with; the residual
  // follows. Between steps, like all below.
  void SetLossScale(float scale);
  // Waits for the norms of the last step.
  CscState Save();
  // Of the same parameters; residuals have their shapes. Also after a backward
  // that failed midway, which is forgotten. Not within one.
  void Restore(CscState state);

 private:
  void CheckBetweenSteps(const char* what) const;
  void BeginStep();
  void EndStep();
  void StartNorms();
  void SelectNext();
  size_t CountFor(size_t chunks) const;
  const CscOps& OpsFor(const CscBucket& bucket) const;

  const HookGroup group_;
  const CscConfig config_;
  // Shared with the exchanges under way, which use its buckets.
  std::shared_ptr<CscLayout> layout_;
  uint64_t step_ = 0;
  float loss_scale_ = 1.0F;
  // Of the step under way, 0 between steps.
  size_t run_ = 0;
  size_t finished_ = 0;
  size_t count_ = 0;  // Known once the last bucket has run.
  // All chunks' norms, by bucket, being summed; null once taken note of.
  at::Tensor norms_;
  HookGroup::Future pending_;
  HookStats stats_;
};

}  // namespace gft
