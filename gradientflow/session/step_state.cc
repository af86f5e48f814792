#include "gradientflow/session/step_state.h"

#include <cstddef>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

const char* Name(StepCall call) {
  constexpr const char* kNames[] = {
      "FinishStep()",   "OptimizerStep()", "ZeroGradients()", "SaveState()",
      "RestoreState()", "SetLossScale()",  "SetStream()"};
  return kNames[static_cast<std::size_t>(call)];
}

bool MayBeInAStep(StepCall call) {
  return call == StepCall::kFinishStep || call == StepCall::kSetLossScale;
}

}  // namespace

Status StepState::Admit(StepCall call, std::uint64_t step, bool touched) const {
  if (!failed_.ok()) return failed_;
  if (running_ &&
      (running_ != StepCall::kFinishStep || call != StepCall::kSetLossScale)) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat(Name(call), " while ", Name(*running_), " runs; step ",
                         step, " is open"));
  }
  if (touched && !MayBeInAStep(call)) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat(Name(call), " within step ", step,
                         ": it comes after FinishStep()"));
  }
  if (call == StepCall::kOptimizerStep && !finished_) return NothingToApply();
  return Status();
}

Status StepState::NothingToApply() const {
  if (discarded_) {
    return Status(StatusCode::kFailedPrecondition,
                  "OptimizerStep() comes before ZeroGradients()");
  }
  return Status(
      StatusCode::kFailedPrecondition,
      applied_ ? StrCat("OptimizerStep(): step ", *applied_,
                        " has been applied already")
               : StrCat("OptimizerStep() comes after FinishStep(): no step has "
                        "been finished since the session opened or its state "
                        "was restored"));
}

void StepState::Finished() {
  running_.reset();
  finished_ = true;
  zeroed_ = discarded_ = false;
}

void StepState::Applied(std::uint64_t step) {
  finished_ = false;
  applied_ = step;
}

void StepState::Zeroed() {
  discarded_ = finished_;
  finished_ = false;
  zeroed_ = true;
}

void StepState::Restored() {
  finished_ = false;
  zeroed_ = true;
  discarded_ = false;
  applied_.reset();
}

const Status& StepState::Fail(const Status& why) {
  running_.reset();
  if (failed_.ok()) failed_ = why;
  return failed_;
}

}  // namespace gradientflow
