#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/collectives/table.h"
#include "tests/base/heap_count.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// What a placed allreduce allocates once calls like it have run.
namespace gradientflow::testing {
namespace {

// The network's queues are as long as they will get, whatever comes first.
TEST(PlacedAllocation, SegmentsAllocateNothing) {
  RanksSetup setup;
  setup.size = 3;
  setup.memory = false;
  setup.places = true;
  OnRanks(setup, [](TestRank& rank) {
    rank.network().Reserve(1000);
    std::vector<float> values(200 * 1024, 1.0F);
    rank.places()->Register(values.data(), values.size() * sizeof(float));
    for (const DType wire : {DType::kFloat32, DType::kFloat16}) {
      for (int i = 0; i < 5; ++i) {
        CollectiveCall call;
        call.output = values.data();
        call.count = values.size();
        call.wire = wire;
        call.op = ReduceOp::kMean;
        call.algorithm = &allreduce::kGdraa;
        Ending ending;
        const std::uint64_t before = HeapAllocations();
        rank.executor().Start(call, ending.done());
        rank.Drive([&] { return ending.over(); });
        EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
        EXPECT_TRUE(i == 0 || HeapAllocations() == before)
            << Name(wire) << ", call " << i << ": "
            << HeapAllocations() - before;
      }
    }
    rank.places()->Deregister(values.data());
  });
}

}  // namespace
}  // namespace gradientflow::testing
