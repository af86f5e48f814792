// Two-level allreduce over equal, uneven and scattered hosts, with messages and
// with shared memory inside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

namespace gradientflow::testing {
namespace {

constexpr std::size_t kAnyBlock = std::numeric_limits<std::size_t>::max();

// What ranks inside a host, and between hosts, can do with others' memory.
struct Means {
  bool one_sided = false;
  std::size_t placed_bytes = 0;
};

// If messages may be placed, latency takes half as long as the bytes of a
// rail's block. So among three hosts or more to place them is fastest.
CallShape ShapeOf(const Topology& topology, const Means& means,
                  std::size_t count) {
  CallShape shape;
  shape.size = static_cast<int>(topology.host.size());
  shape.topology = topology;
  shape.one_sided = means.one_sided;
  shape.placed_bytes = means.placed_bytes;
  if (means.placed_bytes == 0) return shape;
  const int rails = HostMap(shape.size, topology).smallest();
  const std::size_t block = BlockOf(count, rails, rails - 1).count;
  LinkModel link;
  link.seconds_per_byte = 1e-9;
  link.latency_seconds = 0.5e-9 * static_cast<double>(rails) *
                         static_cast<double>(block * shape.wire_element_bytes);
  shape.costs.together.across = shape.costs.alone.across = link;
  return shape;
}

std::vector<SymbolicRank> Schedules(const Topology& topology, std::size_t count,
                                    const Means& means, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1, 1);
  std::vector<SymbolicRank> ranks(topology.host.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].schedule = allreduce::kTwoLevel.make(
        static_cast<int>(r), ShapeOf(topology, means, count), count);
    ranks[r].data.resize(count);
    for (Cell& cell : ranks[r].data) cell.value = values(random);
  }
  return ranks;
}

void ExpectMeanOnAllRanks(const Topology& topology, std::size_t count,
                          const Means& means, SymbolicOptions options) {
  const std::size_t size = topology.host.size();
  auto ranks =
      Schedules(topology, count, means, static_cast<unsigned>(count + size));
  std::vector<double> mean(count);
  for (const auto& rank : ranks) {
    for (std::size_t i = 0; i < count; ++i) {
      mean[i] += rank.data[i].value / static_cast<double>(size);
    }
  }
  options.topology = topology;
  options.unscales = size > 1;
  ASSERT_EQ(Execute(&ranks, options), "");
  const double bound = 1e-12 + options.wire_quantum * static_cast<double>(size);
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(ranks[r].data[i].value, ranks[0].data[i].value)
          << "rank " << r << " element " << i << " of " << count;
      ASSERT_EQ(ranks[r].data[i].scaled, size == 1 ? 0 : 1);
      ASSERT_NEAR(ranks[r].data[i].value, mean[i], bound);
    }
  }
}

void CheckTopology(const Topology& topology, std::size_t count, unsigned seed) {
  std::vector<int> turns(topology.host.size());
  std::iota(turns.begin(), turns.end(), 0);
  std::shuffle(turns.begin(), turns.end(), std::mt19937(seed));
  for (const Means& means :
       {Means{false, 0}, Means{true, 0}, Means{true, kAnyBlock}}) {
    for (auto scaling : {MeanScaling::kBeforeSum, MeanScaling::kAfterSum}) {
      for (double quantum : {0.0, 1.0 / 64}) {
        SymbolicOptions options;
        options.wire_quantum = quantum;
        options.mean = scaling;
        options.turns = turns;
        ASSERT_NO_FATAL_FAILURE(
            ExpectMeanOnAllRanks(topology, count, means, options))
            << "one-sided " << means.one_sided << " placed "
            << means.placed_bytes << " quantum " << quantum << " topology "
            << ::testing::PrintToString(topology.host);
      }
    }
  }
}

TEST(TwoLevelSchedule, LeavesTheSameMeanOnChosenTopologies) {
  const std::vector<std::vector<int>> topologies = {
      {0},
      {4, 4, 4},
      {0, 1},
      {0, 0, 1, 1},
      {0, 1, 0, 1},
      {7, 7, 7, -2, -2, -2, 5, 5, 5},
      {0, 0, 1},
      {1, 0, 0, 0, 2, 2},
      {0, 0, 1, 1, 1, 2, 2, 2, 2},
      {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7},
      {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8},
      {0, 1, 2, 3, 4, 4},
  };
  for (const auto& host : topologies) {
    for (std::size_t count : {0, 1, 2, 7, 16, 97, 128, 1000}) {
      CheckTopology({host}, count, static_cast<unsigned>(count));
    }
  }
}

TEST(TwoLevelSchedule, LeavesTheSameMeanOnRandomTopologies) {
  std::mt19937 random(20);
  for (int trial = 0; trial < 150; ++trial) {
    const int size = std::uniform_int_distribution<int>(1, 20)(random);
    const int hosts = std::uniform_int_distribution<int>(1, size)(random);
    Topology topology;
    for (int r = 0; r < size; ++r) {
      topology.host.push_back(
          std::uniform_int_distribution<int>(0, hosts - 1)(random));
    }
    const auto count =
        std::uniform_int_distribution<std::size_t>(0, 200)(random);
    ASSERT_NO_FATAL_FAILURE(
        CheckTopology(topology, count, static_cast<unsigned>(trial)));
  }
}

TEST(TwoLevelSchedule, GoesAcrossByRingWhenBlocksAreLarge) {
  // 3 hosts: no power of two, and blocks above the bound for small ones.
  for (std::size_t count : {std::size_t{13'000}, std::size_t{30'000}}) {
    CheckTopology({{0, 0, 1, 1, 2, 2}}, count, 1);
    CheckTopology({{0, 0, 1, 1, 2}}, count, 2);
  }
}

TEST(TwoLevelSchedule, UsesEveryContributionRawOnce) {
  // One-sided or by messages, the lane scales what it sums on its host.
  const Topology topology{{0, 0, 0, 1, 1, 2}};
  for (const Means& means : {Means{false, 0}, Means{true, 0}}) {
    for (std::size_t count : {std::size_t{97}, std::size_t{1000}}) {
      auto ranks = Schedules(topology, count, means, 1);
      SymbolicOptions options;
      options.topology = topology;
      ASSERT_EQ(Execute(&ranks, options), "");
      for (int host = 0; host < 3; ++host) {
        for (std::size_t i = 0; i < count; ++i) {
          int raw = 0;
          for (std::size_t r = 0; r < ranks.size(); ++r) {
            if (topology.host[r] == host) raw += ranks[r].raw_uses[i];
          }
          ASSERT_EQ(raw, 1) << "host " << host << " element " << i;
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        int finished = 0;
        for (const auto& rank : ranks) finished += rank.final_uses[i];
        ASSERT_EQ(finished, 1) << "element " << i;
      }
    }
  }
}

TEST(TwoLevelSchedule, SendsBetweenHostsOnlyAlongLanes) {
  const Topology topology{{0, 0, 0, 1, 1, 1}};
  for (int r = 0; r < 6; ++r) {
    for (const auto& round :
         allreduce::kTwoLevel
             .make(r, ShapeOf(topology, {true, 0}, 100'000), 100'000)
             .rounds) {
      for (const Action& action : round) {
        if (action.kind != Action::Kind::kSend) continue;
        EXPECT_EQ(action.peer, (r + 3) % 6);
      }
    }
  }
}

// The rounds of one schedule in which a rank waits for others.
int WaitsOf(const Schedule& schedule) {
  int waits = 0;
  for (const auto& round : schedule.rounds) {
    waits += std::any_of(round.begin(), round.end(), [](const Action& action) {
      return action.kind == Action::Kind::kRecv ||
             action.kind == Action::Kind::kSync;
    });
  }
  return waits;
}

// Three hosts in an order that mixes their ranks, with a rank on no rail.
TEST(TwoLevelSchedule, PlacesTheMessagesOfItsRails) {
  const Topology topology{{0, 1, 1, 2, 0, 2, 1}};
  const std::vector<std::vector<int>> rails = {{0, 1, 3}, {4, 2, 5}};
  for (const std::size_t count : {2, 7, 60, 1000}) {
    for (int r = 0; r < 7; ++r) {
      const Schedule schedule = allreduce::kTwoLevel.make(
          r, ShapeOf(topology, {true, kAnyBlock}, count), count);
      if (r == 6) {
        EXPECT_EQ(schedule.placing, 0);
        EXPECT_EQ(WaitsOf(schedule), 2);
        continue;
      }
      EXPECT_EQ(schedule.placing, 3);
      // A host that owns no element awaits no contribution.
      if (count >= 6) {
        EXPECT_EQ(WaitsOf(schedule), 4);
      }
      for (const auto& round : schedule.rounds) {
        for (const Action& action : round) {
          if (action.kind != Action::Kind::kSend) continue;
          EXPECT_GT(action.there.count, 0U);
          const auto& rail = rails[r == 0 || r == 1 || r == 3 ? 0 : 1];
          EXPECT_EQ(std::count(rail.begin(), rail.end(), action.peer), 1);
        }
      }
    }
  }
}

TEST(TwoLevelSchedule, PlacesNothingThatHasNoRoomOrNoCompany) {
  const auto placing = [](const Topology& topology, const Means& means,
                          std::size_t count) {
    return allreduce::kTwoLevel.make(0, ShapeOf(topology, means, count), count)
        .placing;
  };
  const Topology three{{0, 0, 1, 1, 2, 2}};
  // A rail has half of the elements, of four bytes each.
  EXPECT_EQ(placing(three, {true, 200}, 100), 3);
  EXPECT_EQ(placing(three, {true, 199}, 100), 0);
  EXPECT_EQ(placing(three, {true, 0}, 100), 0);
  EXPECT_EQ(placing(three, {false, kAnyBlock}, 100), 0);
  EXPECT_EQ(placing({{0, 0, 1, 1, 2}}, {true, kAnyBlock}, 100), 0);
  EXPECT_EQ(placing({{0, 0, 0}}, {true, kAnyBlock}, 100), 0);
  // The first rail has no elements.
  EXPECT_EQ(placing(three, {true, kAnyBlock}, 1), 0);
}

}  // namespace
}  // namespace gradientflow::testing
