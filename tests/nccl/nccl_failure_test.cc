#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/nccl_trouble.h"

// Whatever fails, every call ends, with a reason that names the culprit, the
// step and the bucket.
namespace gradientflow::testing {
namespace {

using std::chrono::seconds;

TEST_F(NcclFailure, StallEndsWithTheCulpritAndAnAbort) {
  NcclJob job = Job(2);
  std::atomic<int> started{0};
  RunNcclRanks(job, [&](NcclRank& self) {
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    const DeviceMemory memory = Ones(self, 11);
    Outcome outcome;
    self.collective.Start(Bucket(memory, 11), outcome.done());
    EXPECT_EQ(self.collective.OldestCall(),
              "allreduce #1 of 11 float32, step 7 bucket 3");
    ++started;
    while (started < 2) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(outcome.ended);
    if (self.rank == 0) clock_.Advance(seconds(601));
    self.PollUntil(outcome);
    EXPECT_EQ(outcome.status.code(), StatusCode::kDeadlineExceeded);
    ExpectSays(outcome.status, {culprits_, "allreduce", "step 7 bucket 3"});
    EXPECT_EQ(self.collective.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(self.collective.in_flight(), 0U);
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAborted), 2 * kChannels);
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kDestroyed), 0);
}

TEST_F(NcclFailure, NeitherIdleTimeNorASlowSeriesOfCallsIsAStall) {
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    Outcome outcomes[3];
    clock_.Advance(seconds(10000));
    EXPECT_TRUE(self.Run(Bucket(memory, 11)).status.ok());
    clock_.Advance(seconds(10000));
    self.device.HoldStreams();
    for (Outcome& outcome : outcomes) {
      self.collective.Start(Bucket(memory, 11), outcome.done());
    }
    clock_.Advance(seconds(600));
    self.collective.Poll();
    EXPECT_FALSE(outcomes[0].ended);
    self.device.ReleaseStreams();
    for (Outcome& outcome : outcomes) self.PollUntil(outcome);
    for (Outcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok());
  });
}

TEST_F(NcclFailure, FailEndsTheCallsInFlight) {
  RunNcclRanks(Job(2), [&](NcclRank& self) {
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    const DeviceMemory memory = Ones(self, 11);
    const DeviceMemory other = Ones(self, 5);
    CollectiveCall plain = Bucket(other, 5);
    plain.channel = Channel::kPlain;
    plain.kind = CollectiveKind::kBroadcast;
    Outcome bucket;
    Outcome broadcast;
    Outcome late;
    self.collective.Start(Bucket(memory, 11), bucket.done());
    self.collective.Start(plain, broadcast.done());
    EXPECT_EQ(self.collective.in_flight(), 2U);
    self.collective.Fail(Status(StatusCode::kUnavailable, "rank 2 has died"));
    EXPECT_FALSE(bucket.ended) << "done inside Fail()";
    self.collective.Start(plain, late.done());
    self.PollUntil(bucket);
    self.PollUntil(broadcast);
    self.PollUntil(late);
    for (const Outcome* outcome : {&bucket, &broadcast, &late}) {
      EXPECT_EQ(outcome->status.code(), StatusCode::kUnavailable);
      ExpectSays(outcome->status, {"rank 2 has died"});
    }
    ExpectSays(bucket.status, {"allreduce #1 of 11", "step 7 bucket 3"});
    ExpectSays(broadcast.status, {"broadcast #1 of 5"});
    self.collective.Fail(Status(StatusCode::kInternal, "too late"));
    EXPECT_EQ(self.collective.status().code(), StatusCode::kUnavailable);
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAborted), 2 * kChannels);
}

// What the device has been given may still use the memory of the call, even if
// no event tells so.
TEST_F(NcclFailure, CallsOutliveTheirWorkIfTheDeviceTakesNoEvent) {
  for (const FakeCall call :
       {FakeCall::kNewEvent, FakeCall::kRecord, FakeCall::kQuery}) {
    for (const std::uint64_t nth : {0, 1, 2}) {
      const int aborted = nccl_.Get(FakeNcclCount::kAborted);
      RunNcclRanks(Job(1), [&](NcclRank& self) {
        const DeviceMemory memory = Ones(self, 11);
        const std::function<void()> release =
            self.device.HoldStream(&self.collective.wire(Channel::kGradients));
        Outcome outcome;
        self.collective.Start(Bucket(memory, 11), outcome.done());
        self.device.FailCall(
            call, nth,
            Status(StatusCode::kFailedPrecondition, "being captured"));
        self.collective.Fail(
            Status(StatusCode::kUnavailable, "rank 2 has died"));
        nccl_.Await(FakeNcclCount::kAborted, aborted + kChannels);
        for (int i = 0; i < 1000; ++i) {
          self.collective.Poll();
          std::this_thread::yield();
        }
        EXPECT_FALSE(outcome.ended);
        release();
        self.PollUntil(outcome);
        EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
      });
      if (HasFailure()) FAIL() << static_cast<int>(call) << ", call " << nth;
    }
  }
}

TEST_F(NcclFailure, NcclsOwnErrorWaitsALittleForACulprit) {
  NcclJob job = Job(1);
  int asked = 0;
  job.adjust = [&, before = job.adjust](int rank, NcclArgs* args) {
    before(rank, args);
    args->culprits = [&asked]() -> std::string {
      return ++asked < 3 ? "" : "rank 4 has died";
    };
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    Outcome outcome;
    self.collective.Start(Bucket(memory, 11), outcome.done());
    nccl_.Set(FakeNcclMode::kAsyncError, 6);
    self.PollUntil(outcome);
    EXPECT_EQ(asked, 3);
    EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
    ExpectSays(outcome.status, {"fake remote error", "last words",
                                "rank 4 has died", "step 7 bucket 3"});
  });
}

TEST_F(NcclFailure, NcclsOwnErrorNeedsNoCulprit) {
  culprits_ = "";
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    Outcome outcome;
    self.collective.Start(Bucket(memory, 11), outcome.done());
    nccl_.Set(FakeNcclMode::kAsyncError, 6);
    self.collective.Poll();
    clock_.Advance(seconds(3));
    self.PollUntil(outcome);
    ExpectSays(outcome.status, {"fake remote error"});
  });
}

TEST_F(NcclFailure, TheSessionsReasonGoesBeforeNcclsOwn) {
  culprits_ = "";
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    nccl_.Set(FakeNcclMode::kHangCollectives, 1);
    Outcome outcome;
    self.collective.Start(Bucket(memory, 11), outcome.done());
    nccl_.Set(FakeNcclMode::kAsyncError, 3);
    self.collective.Poll();
    EXPECT_EQ(self.collective.status().code(), StatusCode::kInternal);
    self.collective.Fail(Status(StatusCode::kUnavailable, "rank 1 has died"));
    self.PollUntil(outcome);
    EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
    ExpectSays(outcome.status, {"rank 1 has died", "fake error"});
  });
}

TEST_F(NcclFailure, AbortThatHangsHoldsNobodyUp) {
  NcclJob job = Job(1);
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
    self.collective.Start(Bucket(memory, 11), outcome.done());
    self.collective.Fail(Status(StatusCode::kUnavailable, "rank 2 has died"));
    nccl_.Await(FakeNcclCount::kAborted, kChannels);
    self.collective.Poll();
    EXPECT_FALSE(outcome.ended);
    clock_.Advance(seconds(6));
    self.PollUntil(outcome);
    ExpectSays(outcome.status,
               {"rank 2 has died", "did not give the buffers back",
                "step 7 bucket 3"});
    // The device still uses the memory, which is freed after the collective.
    nccl_.Set(FakeNcclMode::kHangAbort, 0);
    made.value().reset();
  });
}

TEST_F(NcclFailure, ErrorOfACallNamesTheFunction) {
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    nccl_.Set(FakeNcclMode::kCallError, 3);
    const Outcome outcome = self.Run(Bucket(memory, 11));
    EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
    ExpectSays(outcome.status, {"ncclAllReduce", "rank 0 of 1", "code 3",
                                culprits_, "step 7 bucket 3"});
  });
}

TEST_F(NcclFailure, RanksThatDisagreeAllEnd) {
  RunNcclRanks(Job(3), [&](NcclRank& self) {
    const std::size_t count = self.rank == 1 ? 10 : 11;
    const DeviceMemory memory = Ones(self, count);
    const Outcome outcome = self.Run(Bucket(memory, count));
    EXPECT_FALSE(outcome.status.ok());
  });
}

TEST_F(NcclFailure, ErrorOfTheDeviceEndsTheCalls) {
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    self.device.HoldStreams();
    Outcome outcome;
    self.collective.Start(Bucket(memory, 11), outcome.done());
    self.device.FailWork(1, Status(StatusCode::kInternal, "it is too hot"));
    self.device.ReleaseStreams();
    self.PollUntil(outcome);
    EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
    ExpectSays(outcome.status, {"it is too hot", "step 7 bucket 3"});
  });
}

TEST_F(NcclFailure, WrongCallsAreRefusedAndLeaveTheRestAlone) {
  RunNcclRanks(Job(1), [&](NcclRank& self) {
    const DeviceMemory memory = Ones(self, 11);
    std::vector<float> host(11);
    CollectiveCall call = Bucket(memory, 11);
    call.output = host.data();
    Outcome outcome = self.Run(call);
    EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
    ExpectSays(outcome.status, {"output", "not memory of fake:0"});
    class : public Feed {
      std::size_t available() const override { return 0; }
      void Finished(std::size_t, std::size_t) override {}
    } feed;
    call = Bucket(memory, 11);
    call.feed = &feed;
    outcome = self.Run(call);
    ExpectSays(outcome.status, {"no feed"});
    EXPECT_TRUE(self.Run(Bucket(memory, 11)).status.ok());
  });
}

}  // namespace
}  // namespace gradientflow::testing
