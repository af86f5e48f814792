#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/base/heap_count.h"
#include "tests/nccl/allocation_count.h"
#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"

// What a call allocates on the host's heap and on the device after similar
// calls have run.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kElements = 1000;

CollectiveCall Allreduce(const DeviceMemory& memory, std::size_t count) {
  CollectiveCall call;
  call.output = memory.get();
  call.count = count;
  return call;
}

// The calls of a step, of all kinds.
std::vector<CollectiveCall> MixedCalls(const DeviceMemory& memory, int size) {
  std::vector<CollectiveCall> calls(6, Allreduce(memory, kElements));
  calls[0].op = ReduceOp::kMean;
  calls[1].op = ReduceOp::kMean;
  calls[1].scale = 0.7F;
  calls[2].wire = DType::kFloat16;
  calls[3].extents = {{0, 10}, {20, 30}, {600, 400}};
  calls[3].count = 440;
  calls[3].channel = Channel::kGradients;
  calls[4].kind = CollectiveKind::kBroadcast;
  calls[5].kind = CollectiveKind::kAllToAll;
  calls[5].input = memory.get();
  calls[5].output = memory.get() + kElements * 4;
  const auto ranks = static_cast<std::size_t>(size);
  calls[5].send_counts.assign(ranks, kElements / ranks);
  calls[5].recv_counts.assign(ranks, kElements / ranks);
  return calls;
}

TEST(NcclAllocation, NothingIsAllocatedAndTheHostNeverWaits) {
  FakeNccl nccl;
  nccl.Set(FakeNcclMode::kBusyPolls, 1);
  NcclJob job;
  job.nccl = &nccl;
  const std::shared_ptr<const NcclApi> api = WithoutCount(nccl.api());
  std::unique_ptr<Device> quiet;
  job.adjust = [&](int, NcclArgs* args) {
    quiet = WithoutCount(args->device);
    args->device = quiet.get();
    args->api = api;
  };
  RunNcclRanks(job, [](NcclRank& self) {
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, 0, 2 * kElements, 1));
    const std::vector<CollectiveCall> calls = MixedCalls(memory, 1);
    std::vector<Outcome> outcomes(calls.size());
    std::uint64_t heap = 0;
    std::uint64_t device[kFakeCalls] = {};
    // The same calls are in flight together in every round, so the first round
    // makes everything that later rounds use.
    for (int round = 0; round < 12; ++round) {
      if (round == 4) {
        heap = HeapAllocations();
        for (int i = 0; i < kFakeCalls; ++i) {
          device[i] = self.device.count(static_cast<FakeCall>(i));
        }
      }
      self.device.HoldStreams();
      for (std::size_t i = 0; i < calls.size(); ++i) {
        outcomes[i].ended = false;
        self.collective.Start(calls[i], outcomes[i].done());
      }
      self.device.ReleaseStreams();
      for (Outcome& outcome : outcomes) self.PollUntil(outcome);
      for (Outcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok());
    }
    EXPECT_EQ(HeapAllocations(), heap);
    for (const FakeCall call : {FakeCall::kAllocate, FakeCall::kAllocatePinned,
                                FakeCall::kRegisterHost, FakeCall::kNewStream,
                                FakeCall::kNewEvent, FakeCall::kSynchronize}) {
      const int i = static_cast<int>(call);
      EXPECT_EQ(self.device.count(call), device[i]) << "call " << i;
    }
    EXPECT_EQ(self.device.pageable_copies(), 0U);
  });
}

}  // namespace
}  // namespace gradientflow::testing
