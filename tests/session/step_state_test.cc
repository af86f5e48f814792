#include "gradientflow/session/step_state.h"

#include <gtest/gtest.h>

#include <string>

namespace gradientflow {
namespace {

constexpr StepCall kCalls[] = {
    StepCall::kFinishStep,   StepCall::kOptimizerStep, StepCall::kSaveState,
    StepCall::kRestoreState, StepCall::kSetLossScale,  StepCall::kSetStream};

// One letter per call of kCalls: y if it is allowed, n if not.
std::string Table(const StepState& state, bool touched) {
  std::string table;
  for (const StepCall call : kCalls) {
    const Status status = state.Admit(call, 7, touched);
    table += status.ok() ? 'y' : 'n';
    if (!status.ok() && !state.failed()) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_FALSE(status.message().empty());
    }
  }
  return table;
}

TEST(StepState, AdmitsWhatItsTableSays) {
  StepState state;
  EXPECT_EQ(Table(state, false), "ynyyyy");
  EXPECT_EQ(Table(state, true), "ynnnyn");
  state.Begins(StepCall::kFinishStep);
  EXPECT_EQ(Table(state, true), "nnnnyn");
  state.Ends();
  EXPECT_EQ(Table(state, true), "ynnnyn");
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  EXPECT_EQ(Table(state, false), "yyyyyy");
  EXPECT_EQ(Table(state, true), "ynnnyn");
  state.Begins(StepCall::kFinishStep);
  state.Ends();
  EXPECT_EQ(Table(state, false), "yyyyyy") << "nothing of the next was marked";
  state.Applied(6);
  EXPECT_EQ(Table(state, false), "ynyyyy");
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  state.Restored();
  EXPECT_EQ(Table(state, false), "ynyyyy");
}

TEST(StepState, AdmitsNothingWhileAnotherThreadsCallRuns) {
  for (const StepCall call : {StepCall::kOptimizerStep, StepCall::kSaveState,
                              StepCall::kRestoreState}) {
    StepState state;
    state.Begins(StepCall::kFinishStep);
    state.Finished();
    state.Begins(call);
    EXPECT_EQ(Table(state, false), "nnnnnn");
    state.Ends();
    EXPECT_EQ(Table(state, false), "yyyyyy");
  }
}

TEST(StepState, KeepsTheFirstReason) {
  StepState state;
  state.Begins(StepCall::kFinishStep);
  state.Fail(Status(StatusCode::kUnavailable, "the first"));
  EXPECT_EQ(state.Fail(Status(StatusCode::kInternal, "later")).message(),
            "the first");
  for (const bool touched : {false, true}) {
    EXPECT_EQ(Table(state, touched), "nnnnnn");
    for (const StepCall call : kCalls) {
      EXPECT_EQ(state.Admit(call, 7, touched).ToString(),
                Status(StatusCode::kUnavailable, "the first").ToString());
    }
  }
}

}  // namespace
}  // namespace gradientflow
