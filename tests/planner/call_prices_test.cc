// Prices of allreduces: the library's own, and what playing them says.
#include "gradientflow/planner/call_prices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gradientflow/collectives/choose.h"

namespace gradientflow::planner {
namespace {

Cluster ClusterOf(std::vector<int> host_ranks, bool share) {
  Cluster cluster;
  cluster.host_ranks = std::move(host_ranks);
  cluster.hosts_share_memory = share;
  cluster.costs = TypicalCostModel(share);
  return cluster;
}

TEST(CallPrices, AreTheOnesByWhichTheLibraryChooses) {
  for (const auto& hosts : std::vector<std::vector<int>>{
           {1, 1}, {1, 1, 1, 1, 1}, {4, 4}, {8, 8, 3}, {16}}) {
    for (const bool share : {false, true}) {
      const Cluster cluster = ClusterOf(hosts, share);
      const CallPrices prices(cluster, 4, Pricing::kClosedForms);
      for (const std::size_t bytes :
           {std::size_t{4}, std::size_t{4096}, std::size_t{1} << 20,
            std::size_t{1} << 27}) {
        const auto choice = ChooseAlgorithm(CollectiveKind::kAllreduce,
                                            QuestionFor(cluster, 4, bytes));
        EXPECT_NEAR(prices.Seconds(static_cast<double>(bytes)), choice.seconds,
                    1e-9 * choice.seconds);
        EXPECT_EQ(prices.AlgorithmOf(static_cast<double>(bytes)),
                  choice.algorithm);
      }
    }
  }
}

// Between the sizes whose prices are found, the others differ little.
TEST(CallPrices, AreInterpolated) {
  const Cluster cluster = ClusterOf({4, 4, 4}, true);
  const CallPrices prices(cluster, 4, Pricing::kClosedForms);
  for (std::size_t bytes = 100; bytes < std::size_t{1} << 28;
       bytes = bytes * 9 / 7 / 4 * 4) {
    const double exact = ChooseAlgorithm(CollectiveKind::kAllreduce,
                                         QuestionFor(cluster, 4, bytes))
                             .seconds;
    EXPECT_NEAR(prices.Seconds(static_cast<double>(bytes)), exact, 0.04 * exact)
        << bytes;
  }
}

// A round inside a host is quicker than one between hosts, and still a round.
TEST(CallPrices, CountRoundsOfBothKinds) {
  for (const double inside : {1.0, 0.1, 0.001}) {
    Cluster cluster = ClusterOf({4, 4}, false);
    cluster.costs.across = {.latency_seconds = 20e-6, .seconds_per_byte = 1e-9};
    cluster.costs.inside = cluster.costs.across;
    cluster.costs.inside.latency_seconds *= inside;
    cluster.algorithm = ParseAllreduceAlgorithm("ring").value();
    const CallPrices prices(cluster, 4, Pricing::kClosedForms);
    EXPECT_NEAR(prices.Rounds(4096), 2 * 7, 1e-9) << inside;
    // A pass is made beside each of two syncs, too, and one round is across.
    cluster.hosts_share_memory = true;
    cluster.algorithm = ParseAllreduceAlgorithm("two_level").value();
    const CallPrices levels(cluster, 4, Pricing::kClosedForms);
    EXPECT_NEAR(levels.Rounds(4096), 2 + 1, 1e-9) << inside;
  }
}

TEST(CallPrices, OfOneRankAreNothing) {
  const CallPrices prices(ClusterOf({1}, false), 4, Pricing::kPlayed);
  EXPECT_EQ(prices.Seconds(1e6), 0);
}

// All algorithms, up to 64 ranks, on equal and unequal hosts. A ring of ranks
// that are each on a host is what its formula says. Elsewhere ranks do not wait
// for a message's bytes before they prepare the next one, so that many messages
// at once are faster, and the hosts are not all as busy as the busiest.
TEST(CallPrices, FormulasAreCloseToThePlayedSchedules) {
  int compared = 0;
  for (const auto& hosts : std::vector<std::vector<int>>{{1, 1},
                                                         {1, 1, 1},
                                                         SpreadRanks(16, 1),
                                                         SpreadRanks(64, 1),
                                                         {4, 4},
                                                         {2, 3, 4},
                                                         {8, 8, 8, 1},
                                                         SpreadRanks(64, 8)}) {
    for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
      Cluster cluster = ClusterOf(hosts, true);
      cluster.algorithm = algorithm;
      if (std::isinf(PredictSeconds(CollectiveKind::kAllreduce, *algorithm,
                                    QuestionFor(cluster, 4, 4096)))) {
        continue;
      }
      const CallPrices closed(cluster, 4, Pricing::kClosedForms);
      const CallPrices played(cluster, 4, Pricing::kPlayed);
      for (const double bytes : {4096.0, 1048576.0, 67108864.0}) {
        const double factor = played.Seconds(bytes) / closed.Seconds(bytes);
        const bool exact =
            algorithm == &allreduce::kRing && hosts.front() == 1 && bytes > 1e6;
        EXPECT_GT(factor, exact ? 0.99 : 0.6)
            << algorithm->name << ", " << hosts.size() << " hosts, " << bytes;
        EXPECT_LT(factor, exact ? 1.01 : 1.4)
            << algorithm->name << ", " << hosts.size() << " hosts, " << bytes;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 80);
}

// By how much the played schedules of an algorithm take longer than its formula
// says is what they do among 64 ranks.
TEST(CallPrices, BeyondThePlayedRanksTheirFactorHoldsOn) {
  const auto factor = [](const Cluster& cluster, double bytes) {
    return CallPrices(cluster, 4, Pricing::kPlayed).Seconds(bytes) /
           CallPrices(cluster, 4, Pricing::kClosedForms).Seconds(bytes);
  };
  int compared = 0;
  int not_one = 0;
  for (const int per_host : {1, 8}) {
    for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
      Cluster played = ClusterOf(SpreadRanks(64, per_host), true);
      Cluster larger = ClusterOf(SpreadRanks(65, per_host), true);
      played.algorithm = larger.algorithm = algorithm;
      for (const double bytes : {4096.0, 1048576.0}) {
        if (!std::isfinite(factor(larger, bytes))) continue;
        EXPECT_NEAR(factor(larger, bytes), factor(played, bytes), 1e-9)
            << algorithm->name << ", " << per_host << " per host, " << bytes;
        if (std::abs(factor(larger, bytes) - 1) > 0.01) ++not_one;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 10);
  EXPECT_GT(not_one, 5);
}

TEST(CallPrices, MeasuredOnesAreInterpolatedAndKeptBelow) {
  const CallPrices prices({{100, 1, 0, nullptr}, {200, 3, 0, nullptr}});
  EXPECT_EQ(prices.Seconds(50), 1);
  EXPECT_EQ(prices.Seconds(150), 2);
  EXPECT_EQ(prices.Seconds(400), 7);
}

}  // namespace
}  // namespace gradientflow::planner
