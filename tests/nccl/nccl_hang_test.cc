#include <gtest/gtest.h>

#include "tests/nccl/nccl_trouble.h"

// An end that has to leak memory, which a sanitizer would report.
namespace gradientflow::testing {
namespace {

TEST_F(NcclFailure, DestructionDoesNotWaitForAnAbortThatHangs) {
  NcclJob job = JobWhereWaitingTakesTime(1);
  job.adjust = [before = job.adjust](int rank, NcclArgs* args) {
    before(rank, args);
    args->abort_seconds = 5;
  };
  CreateNcclRanks(job, [&](int rank, FakeDevice& device, auto made) {
    ASSERT_TRUE(made.ok());
    NcclRank self{rank, device, *made.value()};
    const DeviceMemory memory = Ones(self, 11);
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    nccl_.Set(FakeNcclMode::kHangAbort, 1);
    Outcome outcome;
    made.value()->Start(Bucket(memory, 11), outcome.done());
    nccl_.Await(FakeNcclCount::kCollectives, 1);
    made.value().reset();
    EXPECT_TRUE(outcome.ended);
    ExpectSays(outcome.status,
               {"calls in flight", "did not give the buffers back"});
    // Lets the device finish before its memory is freed.
    nccl_.Set(FakeNcclMode::kHangAbort, 0);
    nccl_.Await(FakeNcclCount::kEnded, 1);
  });
}

}  // namespace
}  // namespace gradientflow::testing
