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
//                 open   in a step   finishing   finished   failed
// FinishStep      yes    yes         no          yes        no
// OptimizerStep   no     no          no          yes        no
// SaveState       yes    no          no          yes        no
// RestoreState    yes    no          no          yes        no
// SetLossScale    yes    yes         yes         yes        no
// SetStream       yes    no          no          yes        no
//
// in a step   from the first tensor that is marked
// finishing   FinishStep() runs: a completion may call meanwhile
// finished    as open, and the step's gradients have not been applied
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

  void Finishing() { finishing_ = true; }
  // The step goes on: a tensor was missing.
  void GoOn() { finishing_ = false; }
  void Finished();
  // The gradients of `step` have been applied.
  void Applied(std::uint64_t step);
  void Restored();
  // Returns the first reason.
  const Status& Fail(const Status& why);
  bool failed() const { return !failed_.ok(); }

 private:
  Status NothingToApply() const;

  bool finishing_ = false;
  bool finished_ = false;
  std::optional<std::uint64_t> applied_;  // The last one.
  Status failed_;
};

}  // namespace gradientflow
