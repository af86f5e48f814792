#include "gradientflow/session/step_state.h"

#include <gtest/gtest.h>

#include <string>

namespace gradientflow {
namespace {

constexpr StepCall kCalls[] = {
    StepCall::kFinishStep,   StepCall::kOptimizerStep, StepCall::kSaveState,
    StepCall::kRestoreState, StepCall::kSetLossScale,  StepCall::kSetStream,
    StepCall::kZeroGradients};

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
  EXPECT_EQ(Table(state, false), "ynyyyyy");
  EXPECT_EQ(Table(state, true), "ynnnynn");
  state.Begins(StepCall::kFinishStep);
  EXPECT_EQ(Table(state, true), "nnnnynn");
  state.Ends();
  EXPECT_EQ(Table(state, true), "ynnnynn");
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  EXPECT_EQ(Table(state, false), "yyyyyyy");
  EXPECT_EQ(Table(state, true), "ynnnynn");
  state.Begins(StepCall::kFinishStep);
  state.Ends();
  EXPECT_EQ(Table(state, false), "yyyyyyy") << "nothing of the next was marked";
  state.Applied(6);
  EXPECT_EQ(Table(state, false), "ynyyyyy");
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  state.Restored();
  EXPECT_EQ(Table(state, false), "ynyyyyy");
}

TEST(StepState, AdmitsNothingWhileAnotherThreadsCallRuns) {
  for (const StepCall call :
       {StepCall::kOptimizerStep, StepCall::kSaveState, StepCall::kRestoreState,
        StepCall::kZeroGradients}) {
    StepState state;
    state.Begins(StepCall::kFinishStep);
    state.Finished();
    state.Begins(call);
    EXPECT_EQ(Table(state, false), "nnnnnnn");
    state.Ends();
    EXPECT_EQ(Table(state, false), "yyyyyyy");
  }
}

TEST(StepState, HasNothingToApplyOnceGradientsAreZeroed) {
  StepState state;
  EXPECT_TRUE(state.zeroed());
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  EXPECT_FALSE(state.zeroed());
  state.Zeroed();
  EXPECT_TRUE(state.zeroed());
  EXPECT_NE(
      state.Admit(StepCall::kOptimizerStep, 7, false).message().find("before"),
      std::string::npos);
  state.Begins(StepCall::kFinishStep);
  state.Finished();
  EXPECT_TRUE(state.Admit(StepCall::kOptimizerStep, 7, false).ok());
  state.Restored();
  EXPECT_TRUE(state.zeroed());
}

TEST(StepState, KeepsTheFirstReason) {
  StepState state;
  state.Begins(StepCall::kFinishStep);
  state.Fail(Status(StatusCode::kUnavailable, "the first"));
  EXPECT_EQ(state.Fail(Status(StatusCode::kInternal, "later")).message(),
            "the first");
  for (const bool touched : {false, true}) {
    EXPECT_EQ(Table(state, touched), "nnnnnnn");
    for (const StepCall call : kCalls) {
      EXPECT_EQ(state.Admit(call, 7, touched).ToString(),
                Status(StatusCode::kUnavailable, "the first").ToString());
    }
  }
}

}  // namespace
}  // namespace gradientflow
