#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// What a placed allreduce allocates once calls like it have run.
namespace {

thread_local std::uint64_t allocations = 0;

void* Counted(std::size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

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
        const std::uint64_t before = allocations;
        rank.executor().Start(call, ending.done());
        rank.Drive([&] { return ending.over(); });
        EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
        EXPECT_TRUE(i == 0 || allocations == before)
            << Name(wire) << ", call " << i << ": " << allocations - before;
      }
    }
    rank.places()->Deregister(values.data());
  });
}

}  // namespace
}  // namespace gradientflow::testing
