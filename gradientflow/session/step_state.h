#pragma once

#include <cstdint>
#include <optional>

#include "gradientflow/base/status.h"

namespace gradientflow {

// Calls whose meaning depends on where the session's steps stand.
enum class StepCall : std::uint8_t {
  kFinishStep,
  kOptimizerStep,
  kSaveState,
  kRestoreState,
  kSetLossScale,
  kSetStream,
};

// Where a session is in its steps, and so what may be called:
//
//                 open   in a step   finishing   finished   busy   failed
// FinishStep      yes    yes         no          yes        no     no
// OptimizerStep   no     no          no          yes        no     no
// SaveState       yes    no          no          yes        no     no
// RestoreState    yes    no          no          yes        no     no
// SetLossScale    yes    yes         yes         yes        no     no
// SetStream       yes    no          no          yes        no     no
//
// in a step   from the first tensor that is marked
// finishing   FinishStep() runs: a completion may call meanwhile
// finished    as open, and the step's gradients have not been applied
// busy        OptimizerStep(), SaveState() or RestoreState() runs on another
//             thread
// failed      for good
// "No" is kFailedPrecondition, and nothing has changed; of a failed session it
// is the reason for which it failed first.
//
// Who holds the baton touches it.
class StepState {
 public:
  // OK, or what `call` is told. `step`: the one that is open; `touched`: a
  // tensor of it is marked.
  Status Admit(StepCall call, std::uint64_t step, bool touched) const;

  // `call`, admitted, begins to run; it has ended. Other calls may come in
  // between, on other threads or in completions.
  void Begins(StepCall call) { running_ = call; }
  void Ends() { running_.reset(); }
  // FinishStep() has ended, and the step with it.
  void Finished();
  // The gradients of `step` have been applied.
  void Applied(std::uint64_t step);
  void Restored();
  // Returns the first reason.
  const Status& Fail(const Status& why);
  bool failed() const { return !failed_.ok(); }

 private:
  Status NothingToApply() const;

  std::optional<StepCall> running_;
  bool finished_ = false;
  std::optional<std::uint64_t> applied_;  // The last one.
  Status failed_;
};

}  // namespace gradientflow
