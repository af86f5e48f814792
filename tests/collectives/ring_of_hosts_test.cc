// Rings and chains go from host to host, whatever numbers the launcher gave to
// the ranks of a host.
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;

// Hosts as Slurm and Open MPI fill them by slot and in turn, uneven ones, and
// one in which the first rank's host comes back last.
const std::vector<std::vector<int>>& Placements() {
  static const std::vector<std::vector<int>> placements = {
      {0, 0, 1, 1},
      {0, 1, 0, 1},
      {5, 3, 5, 3, 5},
      {0, 1, 2, 0, 1, 2, 0},
      {2, 1, 1, 2, 0, 0, 1},
      {7, 7, 7},
      {3, 1, 2},
      {0, 1, 1, 1, 1, 1, 0}};
  return placements;
}

struct Ring {
  CollectiveKind kind;
  Algorithm algorithm;
};
std::vector<Ring> Rings() {
  return {{CollectiveKind::kAllreduce, &allreduce::kRing},
          {CollectiveKind::kAllgather, &collectives::kRingAllgather},
          {CollectiveKind::kReduceScatter, &collectives::kRingReduceScatter},
          {CollectiveKind::kBroadcast, &collectives::kChainBroadcast},
          {CollectiveKind::kReduce, &collectives::kChainReduce}};
}

std::vector<SymbolicRank> Make(const Ring& ring, const std::vector<int>& hosts,
                               int root, std::size_t count) {
  CallShape shape;
  shape.size = static_cast<int>(hosts.size());
  shape.topology.host = hosts;
  shape.root = root;
  std::vector<SymbolicRank> ranks(hosts.size());
  for (int r = 0; r < shape.size; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.schedule = MakeSchedule(*ring.algorithm, r, shape, count);
    const bool blocks = ring.kind == CollectiveKind::kAllgather;
    rank.data.resize(blocks ? count * hosts.size() : count);
    const bool scatters = ring.kind == CollectiveKind::kReduceScatter;
    rank.input.resize(scatters ? count * hosts.size() : count);
    for (std::size_t i = 0; i < rank.input.size(); ++i) {
      rank.input[i].value = static_cast<double>(i + 1) * (1 << r);
    }
    if (ring.kind == CollectiveKind::kAllreduce ||
        ring.kind == CollectiveKind::kBroadcast) {
      rank.data = rank.input;
    }
  }
  return ranks;
}

// What rank `rank` ends with in element i, of all its blocks.
double Expected(CollectiveKind kind, int size, int root, int rank,
                std::size_t count, std::size_t i) {
  const auto element = static_cast<double>(i % count + 1);
  if (kind == CollectiveKind::kReduceScatter) {
    const double block = static_cast<double>(rank) * static_cast<double>(count);
    return (element + block) * ((1 << size) - 1);
  }
  if (kind == CollectiveKind::kBroadcast) return element * (1 << root);
  if (kind == CollectiveKind::kAllgather) return element * (1 << (i / count));
  return element * ((1 << size) - 1);
}

TEST(RingOfHosts, GivesTheSameResultsInAnyPlacement) {
  for (const Ring& ring : Rings()) {
    for (const auto& hosts : Placements()) {
      const int size = static_cast<int>(hosts.size());
      for (int root = 0; root < size; ++root) {
        for (const std::size_t count : {1, 2, 7, 97}) {
          auto ranks = Make(ring, hosts, root, count);
          SymbolicOptions options;
          options.plain = true;
          ASSERT_EQ(Execute(&ranks, options), "") << ring.algorithm->name;
          for (int r = 0; r < size; ++r) {
            if (ring.kind == CollectiveKind::kReduce && r != root) continue;
            const Cells& data = ranks[static_cast<std::size_t>(r)].data;
            for (std::size_t i = 0; i < data.size(); ++i) {
              ASSERT_EQ(data[i].value,
                        Expected(ring.kind, size, root, r, count, i))
                  << ring.algorithm->name << " rank " << r << " of " << size;
            }
          }
        }
      }
    }
  }
}

TEST(RingOfHosts, EntersAndLeavesEveryHostOnce) {
  for (const Ring& ring : Rings()) {
    for (const auto& hosts : Placements()) {
      for (int root = 0; root < static_cast<int>(hosts.size()); ++root) {
        const auto ranks = Make(ring, hosts, root, 97);
        std::set<std::pair<int, int>> crossing;  // From rank to rank.
        std::map<int, int> leaves;
        std::map<int, int> enters;
        for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
          const auto at = static_cast<std::size_t>(r);
          for (const auto& round : ranks[at].schedule.rounds) {
            for (const Action& action : round) {
              if (action.kind != Action::Kind::kSend) continue;
              const int to = hosts[static_cast<std::size_t>(action.peer)];
              if (to == hosts[at]) continue;
              if (!crossing.emplace(r, action.peer).second) continue;
              ++leaves[hosts[at]];
              ++enters[to];
            }
          }
        }
        // A chain whose root is inside a host comes back to that host.
        for (const auto& [host, times] : leaves) {
          EXPECT_EQ(times, 1) << ring.algorithm->name << ", host " << host;
        }
        for (const auto& [host, times] : enters) {
          EXPECT_EQ(times, 1) << ring.algorithm->name << ", host " << host;
        }
      }
    }
  }
}

// The price is that of the ring that is run.
TEST(RingOfHosts, CostsTheSameInAnyPlacement) {
  CallQuestion question;
  question.count = 1 << 20;
  for (const Ring& ring : Rings()) {
    question.hosts = HostMap(6, {{0, 0, 1, 1, 2, 2}});
    const double neighbours =
        PredictSeconds(ring.kind, *ring.algorithm, question);
    question.hosts = HostMap(6, {{0, 1, 2, 0, 1, 2}});
    EXPECT_DOUBLE_EQ(PredictSeconds(ring.kind, *ring.algorithm, question),
                     neighbours)
        << ring.algorithm->name;
  }
}

}  // namespace
}  // namespace gradientflow::testing
