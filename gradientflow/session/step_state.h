#pragma once

#include <cstdint>
#include <optional>

#include "gradientflow/base/status.h"

namespace gradientflow {

// Calls whose legality depends on the state of the session's steps.
enum class StepCall : std::uint8_t {
  kFinishStep,
  kOptimizerStep,
  kZeroGradients,
  kSaveState,
  kRestoreState,
  kSetLossScale,
  kSetStream,
};

// The state of a session's steps, and which calls it allows:
//
//                 open   in a step   finishing   finished   busy   failed
// FinishStep      yes    yes         no          yes        no     no
// OptimizerStep   no     no          no          yes        no     no
// ZeroGradients   yes    no          no          yes        no     no
// SaveState       yes    no          no          yes        no     no
// RestoreState    yes    no          no          yes        no     no
// SetLossScale    yes    yes         yes         yes        no     no
// SetStream       yes    no          no          yes        no     no
//
// in a step   since the first tensor was marked
// finishing   FinishStep() runs; a completion may make calls meanwhile
// finished    like open, and the step's gradients have not been applied
// busy        OptimizerStep(), ZeroGradients(), SaveState() or RestoreState()
//             runs on another thread
// failed      for good
//
// With `accumulate`, a step may begin only after ZeroGradients(), which also
// ends `finished`: there is nothing left to apply.
//
// "No" means kFailedPrecondition, and that nothing has changed. A failed
// session returns the reason of its first failure instead. For the holder of
// the baton only.
class StepState {
 public:
  // Returns OK, or why `call` is refused. `step` is the step that is open, and
  // `touched` says whether a tensor of it is marked.
  Status Admit(StepCall call, std::uint64_t step, bool touched) const;

  // `call` was admitted and begins to run; Ends() says that it has ended. Other
  // calls may come in between, on other threads or from completions.
  void Begins(StepCall call) { running_ = call; }
  void Ends() { running_.reset(); }
  // FinishStep() has ended, and the step with it.
  void Finished();
  // The gradients of `step` have been applied.
  void Applied(std::uint64_t step);
  // What was sent has been zeroed.
  void Zeroed();
  // False from Finished() to Zeroed() or Restored().
  bool zeroed() const { return zeroed_; }
  void Restored();
  // Returns the reason of the first failure.
  const Status& Fail(const Status& why);
  bool failed() const { return !failed_.ok(); }

 private:
  Status NothingToApply() const;

  std::optional<StepCall> running_;
  bool finished_ = false;
  bool zeroed_ = true;
  bool discarded_ = false;                // Zeroed before it was applied.
  std::optional<std::uint64_t> applied_;  // The last one.
  Status failed_;
};

}  // namespace gradientflow
