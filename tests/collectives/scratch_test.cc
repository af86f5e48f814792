#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/slabs.h"
#include "gradientflow/collectives/table.h"
#include "tests/base/heap_count.h"
#include "tests/collectives/executor_ranks.h"

// Scratch memory: how much calls need, and that it is given back.
namespace gradientflow::testing {
namespace {

using std::chrono::seconds;

TEST(Slabs, KeepWhatIsUsedAndGiveBackTheRest) {
  Slabs slabs;
  std::vector<Slabs::Slab> many;
  for (int i = 0; i < 10; ++i) many.push_back(slabs.Take(100'000));
  Slabs::Slab other = slabs.Take(5000);
  for (Slabs::Slab& slab : many) slabs.Give(std::move(slab));
  slabs.Give(std::move(other));
  EXPECT_EQ(slabs.free_bytes(), 10 * 131'072U + 8192);
  slabs.Trim();
  EXPECT_EQ(slabs.free_bytes(), 10 * 131'072U + 8192) << "just used";
  for (int i = 0; i < 5; ++i) {
    Slabs::Slab one = slabs.Take(100'000);
    Slabs::Slab two = slabs.Take(70'000);
    EXPECT_NE(one.data(), two.data());
    slabs.Give(std::move(one));
    slabs.Give(std::move(two));
  }
  slabs.Trim();
  EXPECT_EQ(slabs.free_bytes(), 2 * 131'072U);
  slabs.Trim();
  EXPECT_EQ(slabs.free_bytes(), 0U);
  EXPECT_NE(slabs.Take(100'000).data(), nullptr);
}

// Bytes of scratch memory of a segment on the root, which needs the most.
std::size_t ScratchOf(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                      int size) {
  CallQuestion question;
  Topology topology;
  topology.host.resize(static_cast<std::size_t>(size));
  question.hosts = HostMap(size, topology);
  question.count = std::size_t{1} << 28;
  question.segment_bytes = std::size_t{256} << 10;
  CallShape shape;
  shape.size = size;
  shape.topology = topology;
  const SegmentCut cut = CutOf(kind, algorithm, question);
  return 4 * MakeSchedule(algorithm, 0, shape, cut.elements).scratch_elements;
}

TEST(Scratch, OfReductionsHardlyGrowsWithTheRanks) {
  using namespace collectives;
  for (const int size : {2, 3, 16, 17, 64, 128, 511, 512}) {
    const std::size_t most = std::max<std::size_t>(
        std::size_t{4} << 20, static_cast<std::size_t>(size) * 32'768);
    EXPECT_LE(ScratchOf(CollectiveKind::kReduce, kDirectReduce, size), most)
        << size;
    EXPECT_LE(
        ScratchOf(CollectiveKind::kReduceScatter, kDirectReduceScatter, size),
        most)
        << size;
    for (const CollectiveAlgorithm* algorithm :
         {&kBinomialReduce, &kChainReduce}) {
      EXPECT_LE(ScratchOf(CollectiveKind::kReduce, *algorithm, size),
                std::size_t{512} << 10);
    }
  }
}

TEST(Scratch, OfALargeCallGoesBackAfterSomeSeconds) {
  RanksSetup setup;
  setup.size = 5;
  setup.memory = false;
  setup.segment_bytes = std::size_t{256} << 10;
  std::barrier<> together(setup.size);
  OnRanks(setup, [&](TestRank& rank) {
    const Clock::Time begin = seconds(100);
    rank.executor().TrimScratch(begin);
    std::vector<float> input(3'000'000, 1.0F);
    std::vector<float> output(input.size());
    CollectiveCall call;
    call.kind = CollectiveKind::kReduce;
    call.algorithm = &collectives::kDirectReduce;
    call.count = input.size();
    call.input = input.data();
    call.output = output.data();
    const auto reduce = [&] {
      Ending ending;
      rank.executor().Start(call, ending.done());
      rank.Drive([&] { return ending.over(); });
      ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
      ASSERT_EQ(output.back(), rank.rank() == 0 ? 5.0F : 0.0F);
    };
    // The heap of all ranks.
    const auto heap_at = [&](int second) {
      together.arrive_and_wait();
      rank.executor().TrimScratch(begin + seconds(second));
      together.arrive_and_wait();
      return HeapBytes();
    };
    reduce();
    const std::size_t used = heap_at(3);
    for (const int second : {6, 9}) EXPECT_EQ(heap_at(second), used) << second;
    EXPECT_LE(heap_at(11) + (std::size_t{1} << 20), used);
    together.arrive_and_wait();
    reduce();
  });
}

// The largest buffer that the arena has room for, to 64 KiB.
std::size_t RoomIn(SharedArena& arena) {
  constexpr std::size_t kUnit = std::size_t{64} << 10;
  std::size_t fits = 0;
  for (std::size_t more = std::size_t{1} << 14; more > 0; more /= 2) {
    const Result<BufferView> view = arena.Allocate((fits + more) * kUnit);
    if (!view.ok()) continue;
    arena.Free(view.value());
    fits += more;
  }
  return fits * kUnit;
}

// Buffers outside the arena, of which ranks show copies.
TEST(Scratch, InTheArenaGoesBackAfterSomeSeconds) {
  RanksSetup setup;
  setup.size = 3;
  setup.segment_bytes = std::size_t{256} << 10;
  OnRanks(setup, [](TestRank& rank) {
    const Clock::Time begin = seconds(100);
    rank.executor().TrimScratch(begin);
    const std::size_t before = RoomIn(*rank.arena());
    std::vector<float> data(1'000'000);
    CollectiveCall call;
    call.count = data.size();
    call.output = data.data();
    const auto allreduce = [&] {
      std::fill(data.begin(), data.end(), 1.0F);
      Ending ending;
      rank.executor().Start(call, ending.done());
      rank.Drive([&] { return ending.over(); });
      ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
      ASSERT_EQ(data.back(), 3.0F);
    };
    allreduce();
    const std::size_t left = RoomIn(*rank.arena());
    EXPECT_LE(left + (std::size_t{512} << 10), before);
    rank.executor().TrimScratch(begin + seconds(11));
    EXPECT_EQ(RoomIn(*rank.arena()), left) << "just used";
    rank.executor().TrimScratch(begin + seconds(22));
    EXPECT_EQ(RoomIn(*rank.arena()), before);
    allreduce();
  });
}

}  // namespace
}  // namespace gradientflow::testing
