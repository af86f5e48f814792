#include <gtest/gtest.h>

#include <string>

#include "tests/nccl/nccl_trouble.h"

// Failures at the start, and calls that never end.
namespace gradientflow::testing {
namespace {

TEST_F(NcclFailure, BeginningThatNeverEndsEndsByTimeout) {
  nccl_.Set(FakeNcclMode::kHangInit, 1);
  CreateNcclRanks(
      JobWhereWaitingTakesTime(2), [&](int rank, FakeDevice&, auto made) {
        ASSERT_FALSE(made.ok());
        EXPECT_EQ(made.status().code(), StatusCode::kDeadlineExceeded);
        ExpectSays(made.status(), {"rank " + std::to_string(rank) + " of 2",
                                   "120 s", "connect", culprits_});
      });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kBegun), 2);
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAborted), 2);
}

TEST_F(NcclFailure, BeginningEndsWhenTheSessionSaysSo) {
  nccl_.Set(FakeNcclMode::kHangInit, 1);
  NcclJob job = Job(2);
  job.adjust = [before = job.adjust](int rank, NcclArgs* args) {
    before(rank, args);
    args->while_waiting = [] {
      return Status(StatusCode::kUnavailable, "rank 1 has died");
    };
  };
  CreateNcclRanks(job, [&](int, FakeDevice&, auto made) {
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kUnavailable);
    ExpectSays(made.status(), {"rank 1 has died"});
  });
}

TEST_F(NcclFailure, EveryRankIsToldThatRankZeroCannotBegin) {
  nccl_.Set(FakeNcclMode::kIdError, 2);
  CreateNcclRanks(Job(3), [&](int rank, FakeDevice&, auto made) {
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(),
              rank == 0 ? StatusCode::kUnavailable : StatusCode::kAborted);
    ExpectSays(made.status(), {rank == 0 ? "ncclGetUniqueId" : "rank 0"});
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kBegun), 0);
}

TEST_F(NcclFailure, TheThreadsDeviceMustBeTheRanks) {
  nccl_.Set(FakeNcclMode::kDevice, 3);
  CreateNcclRanks(Job(1), [&](int, FakeDevice&, auto made) {
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kFailedPrecondition);
    ExpectSays(made.status(), {"device 3", "expected 0"});
  });
}

TEST_F(NcclFailure, DestructionEndsTheCallsInFlight) {
  CreateNcclRanks(Job(1), [&](int rank, FakeDevice& device, auto made) {
    ASSERT_TRUE(made.ok());
    NcclRank self{rank, device, *made.value()};
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    const DeviceMemory memory = Ones(self, 11);
    Outcome outcome;
    made.value()->Start(Bucket(memory, 11), outcome.done());
    made.value().reset();
    EXPECT_TRUE(outcome.ended);
    EXPECT_EQ(outcome.status.code(), StatusCode::kAborted);
  });
}

TEST_F(NcclFailure, EndThatNeverComesIsAborted) {
  RunNcclRanks(JobWhereWaitingTakesTime(1),
               [&](NcclRank&) { nccl_.Set(FakeNcclMode::kHangFinalize, 1); });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAborted), kChannels);
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kDestroyed), 0);
}

}  // namespace
}  // namespace gradientflow::testing
