#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/nccl/queue.h"
#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"
#include "transports/wire.h"

// Many calls in sequence: what is kept, what grows, what waits.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

constexpr std::size_t kElements = 1000;

CollectiveCall Allreduce(const DeviceMemory& memory, std::size_t count) {
  CollectiveCall call;
  call.output = memory.get();
  call.count = count;
  return call;
}

TEST(NcclSteady, FactorsAreMadeOnceAndOldOnesGivenBack) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  RunNcclRanks(job, [&](NcclRank& self) {
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, 0, kElements, 1));
    CollectiveCall call = Allreduce(memory, kElements);
    for (int i = 0; i < 20; ++i) {
      call.scale = i % 2 == 0 ? 0.5F : 0.25F;
      EXPECT_TRUE(self.Run(call).status.ok());
    }
    EXPECT_EQ(nccl.Get(FakeNcclCount::kOperators), 2);
    for (int i = 0; i < 20; ++i) {
      call.scale = 1.0F + 0.01F * static_cast<float>(1 + i);
      EXPECT_TRUE(self.Run(call).status.ok());
    }
    EXPECT_EQ(nccl.Get(FakeNcclCount::kOperators), 22);
    EXPECT_EQ(nccl.Get(FakeNcclCount::kOperatorsDestroyed), 22 - 8);
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kOperatorsDestroyed), 22);
}

// Staging memory grows while smaller calls still use the old one.
TEST(NcclSteady, StagingGrowsUnderCallsInFlight) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  job.lag = FakeLag::kNone;
  RunNcclRanks(job, [](NcclRank& self) {
    // Above and below the unit by which it grows.
    const std::size_t counts[] = {1000, 1200000, 999, 2300001};
    std::vector<std::vector<Elements>> inputs;
    std::vector<DeviceMemory> memory;
    std::vector<CollectiveCall> calls;
    std::vector<Outcome> outcomes(std::size(counts));
    self.device.HoldStreams();
    for (std::size_t i = 0; i < std::size(counts); ++i) {
      inputs.emplace_back();
      for (int r = 0; r < 2; ++r) {
        inputs[i].push_back(NcclInput(DType::kFloat32, r, counts[i], i));
      }
      memory.push_back(self.Upload(inputs[i][self.rank]));
      calls.push_back(Allreduce(memory[i], counts[i]));
      calls[i].wire = DType::kBFloat16;
      self.collective.Start(calls[i], outcomes[i].done());
    }
    self.device.ReleaseStreams();
    for (std::size_t i = 0; i < std::size(counts); ++i) {
      self.PollUntil(outcomes[i]);
      ASSERT_TRUE(outcomes[i].status.ok());
      Elements seen(DType::kFloat32, counts[i]);
      NcclRank::Download(memory[i], &seen);
      for (std::size_t e = 0; e < counts[i]; e += 97) {
        ASSERT_TRUE(IsReduced(calls[i], inputs[i], e, seen, e));
      }
    }
  });
}

// Every fifth call has a NaN, which must not be reported for any other call.
TEST(NcclSteady, MoreCallsThanFitOnTheDeviceEndInOrderWithTheirOwnFlags) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  job.lag = FakeLag::kNone;
  RunNcclRanks(job, [](NcclRank& self) {
    constexpr std::size_t kCalls = 200;
    std::vector<Elements> inputs;
    for (int r = 0; r < 2; ++r) {
      inputs.push_back(NcclInput(DType::kFloat32, r, kCalls, 1));
      for (std::size_t i = 0; i < kCalls; i += 5) {
        inputs[r].Set(i, std::nan(""));
      }
    }
    const DeviceMemory memory = self.Upload(inputs[self.rank]);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> ended;
    self.device.HoldStreams();
    for (std::size_t i = 0; i < kCalls; ++i) {
      CollectiveCall call = Allreduce(memory, 1);
      call.output = memory.get() + i * 4;
      // Both ways to detect non-finite values.
      if (i % 2 == 0) call.wire = DType::kBFloat16;
      self.collective.Start(
          call, {[](void* to, std::uint64_t cookie, std::uint32_t flags,
                    const Status& status) {
                   EXPECT_TRUE(status.ok());
                   static_cast<decltype(ended)*>(to)->emplace_back(cookie,
                                                                   flags);
                 },
                 &ended, i});
    }
    EXPECT_EQ(self.collective.in_flight(), kCalls);
    self.device.ReleaseStreams();
    while (self.collective.in_flight() > 0) self.collective.Poll();
    ASSERT_EQ(ended.size(), kCalls);
    Elements seen(DType::kFloat32, kCalls);
    NcclRank::Download(memory, &seen);
    CollectiveCall call = Allreduce(memory, kCalls);
    call.wire = DType::kBFloat16;
    for (std::size_t i = 0; i < kCalls; ++i) {
      EXPECT_EQ(ended[i].first, i);
      EXPECT_EQ(ended[i].second, i % 5 == 0 ? kFlagNonfinite : 0U) << i;
      if (i % 5 == 0) continue;
      ASSERT_TRUE(IsReduced(call, inputs, i, seen, i));
    }
  });
}

void CountRun(void* count, std::uint64_t, std::uint32_t, const Status& status) {
  EXPECT_TRUE(status.ok()) << status.ToString();
  ++*static_cast<std::size_t*>(count);
}

// Every third call has a NaN; so many calls have no room in the slots of
// others.
TEST(NcclSteady, CallsSubmittedAheadAreNotAskedForAndEndWhenTold) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  job.lag = FakeLag::kNone;
  RunNcclRanks(job, [](NcclRank& self) {
    constexpr std::size_t kCalls = 150;
    ASSERT_TRUE(self.collective.TakesAhead());
    Elements input(DType::kFloat32, kCalls);
    for (std::size_t i = 0; i < kCalls; ++i) {
      input.Set(i, i % 3 == 0 ? std::nan("") : 1);
    }
    const DeviceMemory memory = self.Upload(input);
    const DeviceMemory flags =
        self.device.Allocate(kCalls * sizeof(std::uint32_t)).value();
    auto* const flag = reinterpret_cast<std::uint32_t*>(flags.get());
    std::size_t submitted = 0;
    std::size_t ended = 0;
    self.device.HoldStreams();
    const std::uint64_t looks = self.device.count(FakeCall::kQuery);
    for (std::size_t i = 0; i < kCalls; ++i) {
      CollectiveCall call = Allreduce(memory, 1);
      call.output = memory.get() + i * 4;
      call.submitted = {&CountRun, &submitted, 0};
      // A caller may look for itself.
      call.nonfinite = i % 2 == 0 ? flag + i : nullptr;
      self.collective.Start(call, {&CountRun, &ended, 0});
    }
    while (submitted < kCalls) self.collective.Poll();
    EXPECT_EQ(self.device.count(FakeCall::kQuery), looks);
    EXPECT_EQ(ended, 0U);
    self.device.ReleaseStreams();
    ASSERT_TRUE(self.collective.wire(Channel::kPlain).Synchronize().ok());
    self.collective.Poll();
    EXPECT_EQ(self.collective.in_flight(), kCalls);
    self.collective.Passed(Channel::kPlain);
    EXPECT_FALSE(self.collective.Busy(0, Channel::kPlain));
    self.collective.Poll();
    EXPECT_EQ(ended, kCalls);
    EXPECT_EQ(self.device.count(FakeCall::kQuery), looks);
    for (std::size_t i = 0; i < kCalls; ++i) {
      EXPECT_EQ(flag[i], i % 6 == 0 ? 1U : 0U) << i;
    }
  });
}

// The device stands still, so nothing beyond what it may hold is submitted to
// it, however many calls there are.
TEST(NcclSteady, CallsSubmittedAheadAreBounded) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  job.lag = FakeLag::kNone;
  std::array<ManualClock, 2> clocks;  // The other rank may be ahead.
  job.adjust = [&](int rank, NcclArgs* args) {
    args->clock = &clocks[static_cast<std::size_t>(rank)];
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    constexpr std::size_t kCalls = 3 * NcclQueue::kAhead;
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, self.rank, kCalls, 1));
    std::size_t submitted = 0;
    std::size_t ended = 0;
    self.device.HoldStreams();
    for (std::size_t i = 0; i < kCalls; ++i) {
      CollectiveCall call = Allreduce(memory, 1);
      call.output = memory.get() + i * 4;
      call.submitted = {&CountRun, &submitted, 0};
      self.collective.Start(call, {&CountRun, &ended, 0});
    }
    while (submitted < NcclQueue::kAhead) self.collective.Poll();
    const std::uint64_t looks = self.device.count(FakeCall::kQuery);
    for (int i = 0; i < 1000; ++i) self.collective.Poll();
    EXPECT_EQ(submitted, NcclQueue::kAhead);
    // Time stands still, too; the first look may come after these 50 us.
    EXPECT_LE(self.device.count(FakeCall::kQuery) - looks, 1U);
    self.device.ReleaseStreams();
    while (submitted < kCalls) {
      clocks[static_cast<std::size_t>(self.rank)].Advance(
          std::chrono::microseconds(10));
      self.collective.Poll();
    }
    ASSERT_TRUE(self.collective.wire(Channel::kPlain).Synchronize().ok());
    self.collective.Passed(Channel::kPlain);
    self.collective.Poll();
    EXPECT_EQ(ended, kCalls);
  });
}

TEST(NcclSteady, CallsWaitForTheProducersEvent) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  RunNcclRanks(job, [](NcclRank& self) {
    const Elements produced = NcclInput(DType::kInt64, self.rank, kElements, 1);
    const DeviceMemory source = self.Upload(produced);
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kInt64, self.rank, kElements, 2));
    Result<std::unique_ptr<Stream>> stream = self.device.NewStream(false);
    Result<std::unique_ptr<Event>> event = self.device.NewEvent();
    ASSERT_TRUE(stream.ok() && event.ok());
    Stream& producer = *stream.value();
    ASSERT_TRUE(producer.Copy(memory.get(), source.get(), kElements * 8).ok());
    ASSERT_TRUE(producer.Record(event.value().get()).ok());
    CollectiveCall call = Allreduce(memory, kElements);
    call.dtype = call.wire = DType::kInt64;
    ASSERT_TRUE(self.collective.stream(call.channel).Wait(*event.value()).ok());
    ASSERT_TRUE(self.Run(call).status.ok());
    Elements seen(DType::kInt64, kElements);
    NcclRank::Download(memory, &seen);
    const std::vector<Elements> inputs = {
        NcclInput(DType::kInt64, 0, kElements, 1),
        NcclInput(DType::kInt64, 1, kElements, 1)};
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_TRUE(IsReduced(call, inputs, i, seen, i));
    }
  });
}

}  // namespace
}  // namespace gradientflow::testing
