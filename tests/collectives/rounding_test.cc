#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/collectives/executor_ranks.h"
#include "transports/arena.h"

// Rounding to a narrower wire does not depend on the fabric: shared memory and
// messages give the same bits, and report the same overflows.
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;

struct Outcome {
  std::vector<std::byte> bits;
  bool nonfinite = false;
  bool operator==(const Outcome&) const = default;
};

// Returns the result of rank 0; `values[r]` is rank r's contribution. The
// buffer of every other rank is in the arena, if there is one, and so is not
// staged.
Outcome Reduce(const RanksSetup& setup, const CollectiveCall& call,
               const std::vector<std::vector<float>>& values) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setup.size));
  OnRanks(setup, [&](TestRank& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    std::vector<std::byte> data = Encode(call.dtype, values[me]);
    std::byte* at = data.data();
    BufferView shared;
    if (rank.arena() != nullptr && me % 2 == 0 && !data.empty()) {
      shared = rank.arena()->Allocate(data.size()).value();
      at = std::copy(data.begin(), data.end(), shared.data) - data.size();
    }
    CollectiveCall mine = call;
    mine.output = at;
    mine.count = values[me].size();
    Ending ending;
    rank.executor().Start(mine, ending.done());
    rank.Drive([&] { return ending.over(); });
    EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
    outcomes[me] = {{at, at + data.size()}, ending.nonfinite};
    if (shared.data != nullptr) rank.arena()->Free(shared);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome == outcomes[0]) << Describe(setup);
  }
  return outcomes[0];
}

std::vector<std::vector<float>> Contributions(int size, std::size_t count) {
  std::vector<std::vector<float>> values;
  for (int r = 0; r < size; ++r) values.push_back(Contribution(r, count, 7));
  return values;
}

struct Types {
  DType pool;
  DType wire;
};
constexpr Types kTypes[] = {{DType::kFloat32, DType::kFloat16},
                            {DType::kFloat32, DType::kBFloat16},
                            {DType::kFloat16, DType::kBFloat16},
                            {DType::kBFloat16, DType::kFloat16},
                            {DType::kFloat16, DType::kFloat32}};

TEST(Rounding, OfContributionsThatTravelOnceIsTheSameOverAllFabrics) {
  for (const int size : {2, 3, 5, 8}) {
    RanksSetup memory;
    memory.size = size;
    RanksSetup messages = memory;
    messages.memory = false;
    RanksSetup placed = messages;
    placed.places = true;
    // One-sided segments are longer: the last count is cut in other places.
    for (const std::size_t count : {1, 7, 1031, 9001}) {
      const auto values = Contributions(size, count);
      for (const Types types : kTypes) {
        CollectiveCall call;
        call.dtype = types.pool;
        call.wire = types.wire;
        call.op = ReduceOp::kMean;
        call.algorithm = &allreduce::kTwoSync;
        const Outcome expected = Reduce(messages, call, values);
        call.algorithm = &allreduce::kOneRound;
        EXPECT_TRUE(Reduce(messages, call, values) == expected)
            << "one_round, " << count << " as " << Name(call.wire);
        call.algorithm = &allreduce::kGdraa;
        EXPECT_TRUE(Reduce(placed, call, values) == expected)
            << "gdraa, " << count << " as " << Name(call.wire);
        call.algorithm = &allreduce::kShared;
        EXPECT_TRUE(Reduce(memory, call, values) == expected)
            << "shared, " << count << " as " << Name(call.wire);
      }
    }
  }
}

TEST(Rounding, InsideHostsIsTheSameByMemoryAndByMessages) {
  for (const int size : {5, 6, 7, 8}) {
    RanksSetup memory;
    memory.size = size;
    memory.ranks_per_host = 3;
    RanksSetup messages = memory;
    messages.memory = false;
    // One segment either way: other cuts would change the order of additions.
    const auto values = Contributions(size, 1021);
    for (const Types types : kTypes) {
      CollectiveCall call;
      call.dtype = types.pool;
      call.wire = types.wire;
      call.op = ReduceOp::kMean;
      call.algorithm = &allreduce::kTwoLevel;
      EXPECT_TRUE(Reduce(memory, call, values) ==
                  Reduce(messages, call, values))
          << size << " ranks, " << Name(call.dtype) << " as "
          << Name(call.wire);
    }
  }
}

// 1e5 is too large for float16, whichever rank contributes or adds it.
TEST(Rounding, OverflowsWhoeverBringsTooMuchForTheWire) {
  for (const int size : {1, 2, 3, 5}) {
    for (const bool share : {true, false}) {
      RanksSetup setup;
      setup.size = size;
      setup.memory = share;
      setup.places = !share;
      for (const Algorithm algorithm : std::vector<Algorithm>{
               nullptr, &allreduce::kTwoSync, &allreduce::kOneRound,
               &allreduce::kGdraa, &allreduce::kShared, &allreduce::kOneSync}) {
        if (algorithm != nullptr &&
            RunnableAlgorithm(algorithm, size, share, !share) != algorithm) {
          continue;
        }
        for (int who = 0; who < size; ++who) {
          std::vector<std::vector<float>> values(static_cast<std::size_t>(size),
                                                 std::vector<float>(37, 0.5F));
          values[static_cast<std::size_t>(who)][5] = 1e5F;
          CollectiveCall call;
          call.wire = DType::kFloat16;
          call.op = ReduceOp::kMean;
          call.algorithm = algorithm;
          const Outcome seen = Reduce(setup, call, values);
          EXPECT_TRUE(seen.nonfinite)
              << Describe(setup) << ", " << Name(algorithm) << ", rank " << who;
          const float value = Decode(DType::kFloat32, seen.bits.data(), 6)[5];
          EXPECT_GT(value, 1e30F) << Name(algorithm);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
