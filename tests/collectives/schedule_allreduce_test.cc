// Every allreduce must leave the right sum or mean on every rank, with the same
// bits, whatever the wire does to the values and whichever rank runs first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

namespace gradientflow::testing {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 16, 97, 128, 1000};

using Algorithm = const CollectiveAlgorithm*;

std::vector<SymbolicRank> Schedules(Algorithm algorithm, int size,
                                    std::size_t count) {
  std::vector<SymbolicRank> ranks(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.schedule = MakeSchedule(*algorithm, r, {.size = size}, count);
    rank.data.resize(count);
  }
  return ranks;
}

std::size_t RoundsOf(const CollectiveAlgorithm& algorithm, int rank, int size) {
  return MakeSchedule(algorithm, rank, {.size = size}, 1000).rounds.size();
}

// Fractions, whose sums depend on the order of the additions.
void FillWithFractions(unsigned seed, std::vector<SymbolicRank>* ranks) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1, 1);
  for (auto& rank : *ranks) {
    for (Cell& cell : rank.data) cell.value = values(random);
  }
}

std::vector<double> MeanOf(const std::vector<SymbolicRank>& ranks) {
  std::vector<double> mean(ranks[0].data.size());
  for (const auto& rank : ranks) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += rank.data[i].value / static_cast<double>(ranks.size());
    }
  }
  return mean;
}

std::vector<int> Shuffled(int size, unsigned seed) {
  std::vector<int> turns(static_cast<std::size_t>(size));
  std::iota(turns.begin(), turns.end(), 0);
  std::shuffle(turns.begin(), turns.end(), std::mt19937(seed));
  return turns;
}

class AllreduceSchedule
    : public ::testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  Algorithm algorithm() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(AllreduceSchedule, LeavesTheExactSumOnEveryRank) {
  for (std::size_t count : kCounts) {
    auto ranks = Schedules(algorithm(), size(), count);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ranks[r].data[i].value =
            std::ldexp(static_cast<double>(i + 1), static_cast<int>(r % 40));
      }
    }
    double factor = 0;
    for (int r = 0; r < size(); ++r) factor += std::ldexp(1.0, r % 40);
    ASSERT_EQ(Execute(&ranks), "") << "count " << count;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(ranks[r].data[i].value, factor * static_cast<double>(i + 1))
            << "rank " << r << " element " << i << " of " << count;
      }
    }
  }
}

TEST_P(AllreduceSchedule, LeavesTheSameMeanBitsWithALossyWire) {
  constexpr double kQuantum = 1.0 / 64;
  for (std::size_t count : kCounts) {
    for (auto scaling : {MeanScaling::kBeforeSum, MeanScaling::kAfterSum}) {
      for (double quantum : {0.0, kQuantum}) {
        auto ranks = Schedules(algorithm(), size(), count);
        FillWithFractions(static_cast<unsigned>(count), &ranks);
        const auto mean = MeanOf(ranks);
        SymbolicOptions options;
        options.wire_quantum = quantum;
        options.mean = scaling;
        options.unscales = size() > 1;
        options.turns = Shuffled(size(), static_cast<unsigned>(count) + 1);
        ASSERT_EQ(Execute(&ranks, options), "") << "count " << count;
        // Each contribution and each result is rounded at most once per hop.
        const double bound = 1e-12 + quantum * size();
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(ranks[r].data[i].value, ranks[0].data[i].value)
                << "rank " << r << " element " << i << " of " << count;
            ASSERT_EQ(ranks[r].data[i].scaled, size() == 1 ? 0 : 1);
            ASSERT_NEAR(ranks[r].data[i].value, mean[i], bound);
          }
        }
      }
    }
  }
}

TEST_P(AllreduceSchedule, UsesContributionsAndFinishesResultsOnce) {
  if (size() == 1) {
    EXPECT_TRUE(MakeSchedule(*algorithm(), 0, {}, 100).rounds.empty());
    return;
  }
  for (std::size_t count : kCounts) {
    auto ranks = Schedules(algorithm(), size(), count);
    ASSERT_EQ(Execute(&ranks), "") << "count " << count;
    for (std::size_t i = 0; i < count; ++i) {
      int finished = 0;
      for (const auto& rank : ranks) {
        finished += rank.final_uses[i];
        if (rank.schedule.multi_hop) {
          ASSERT_EQ(rank.raw_uses[i], 1) << "element " << i << " of " << count;
        }
      }
      // With one round, or one sync, all ranks finish each element by
      // themselves.
      const bool all_finish = algorithm() == &allreduce::kOneRound ||
                              algorithm() == &allreduce::kOneSync;
      ASSERT_EQ(finished, all_finish ? size() : 1)
          << "element " << i << " of " << count;
    }
  }
}

TEST_P(AllreduceSchedule, SendsNoMoreThanItsFormula) {
  const auto n = static_cast<std::size_t>(size());
  const std::size_t count = 960;
  for (int r = 0; r < size(); ++r) {
    const Schedule schedule =
        MakeSchedule(*algorithm(), r, {.size = size()}, count);
    std::size_t sent = 0;
    for (const auto& round : schedule.rounds) {
      for (const Action& action : round) {
        if (action.kind == Action::Kind::kSend) sent += action.src.count;
      }
    }
    const bool power_of_two = (n & (n - 1)) == 0;
    std::size_t bound = 2 * count * (n - 1) / n + 2 * n;
    if (algorithm() == &allreduce::kOneRound) bound = count * (n - 1);
    if (algorithm()->memory == CollectiveAlgorithm::Memory::kMustShare) {
      bound = 0;
    }
    // With every rank on a host of its own, two-level is the algorithm between
    // hosts.
    const bool folds = algorithm() == &allreduce::kHalvingDoubling ||
                       algorithm() == &allreduce::kTwoLevel;
    if (folds && !power_of_two) bound = 3 * count;
    EXPECT_LE(sent, bound) << "rank " << r;
  }
}

std::string CaseName(
    const ::testing::TestParamInfo<AllreduceSchedule::ParamType>& info) {
  return StrCat(std::get<0>(info.param)->name, "_", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, AllreduceSchedule,
    ::testing::Combine(::testing::ValuesIn(allreduce::kTable),
                       ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                         13, 14, 15, 16, 17, 32)),
    CaseName);

TEST(AllreduceSchedule, SumsMoreRanksThanOneActionTakes) {
  constexpr int kSize = 2 * kMaxReduceParties + 3;
  for (Algorithm algorithm : allreduce::kTable) {
    auto ranks =
        Schedules(RunnableAlgorithm(algorithm, kSize, true, true), kSize, 150);
    FillWithFractions(1, &ranks);
    const auto mean = MeanOf(ranks);
    SymbolicOptions options;
    options.wire_quantum = 1.0 / 1024;
    options.mean = MeanScaling::kAfterSum;
    ASSERT_EQ(Execute(&ranks, options), "") << algorithm->name;
    // Partial sums are rounded at each hop, other values twice.
    const double roundings = ranks[0].schedule.multi_hop ? kSize : 2;
    for (const auto& rank : ranks) {
      for (std::size_t i = 0; i < rank.data.size(); ++i) {
        ASSERT_EQ(rank.data[i].value, ranks[0].data[i].value);
        ASSERT_NEAR(rank.data[i].value, mean[i], roundings / 1024);
      }
    }
  }
}

TEST(AllreduceSchedule, TakesTheNumberOfRoundsItPromises) {
  EXPECT_EQ(RoundsOf(allreduce::kRing, 3, 7), 12U);
  EXPECT_EQ(RoundsOf(allreduce::kHalvingDoubling, 3, 16), 8U);
  EXPECT_EQ(RoundsOf(allreduce::kHalvingDoubling, 0, 17), 10U);
  EXPECT_EQ(RoundsOf(allreduce::kHalvingDoubling, 16, 17), 2U);
  EXPECT_EQ(RoundsOf(allreduce::kTwoSync, 3, 7), 2U);
  EXPECT_EQ(RoundsOf(allreduce::kOneRound, 3, 7), 1U);
  EXPECT_EQ(RoundsOf(allreduce::kShared, 3, 7), 3U);
}

TEST(Blocks, CoverTheRangeInOrderAndDifferByOneAtMost) {
  for (std::size_t count : kCounts) {
    for (int size = 1; size <= 33; ++size) {
      std::size_t end = 0;
      const std::size_t least = count / static_cast<std::size_t>(size);
      for (int b = 0; b < size; ++b) {
        const Extent block = BlockOf(count, size, b);
        EXPECT_EQ(block.begin, end);
        EXPECT_GE(block.count, least);
        EXPECT_LE(block.count, least + 1);
        end = block.begin + block.count;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(Blocks, DoNotOverflowAtTheLargestCounts) {
  constexpr std::size_t kCount = ~std::size_t{0} / 2;
  EXPECT_EQ(BlockOf(kCount, 1000, 999).begin + BlockOf(kCount, 1000, 999).count,
            kCount);
}

// The checks above are only as good as those of the executor.
TEST(SymbolicExecutor, NoticesWhatIsWrong) {
  auto ranks = Schedules(&allreduce::kRing, 3, 12);
  ranks[1].schedule.rounds.pop_back();
  EXPECT_NE(Execute(&ranks).find("deadlock"), std::string::npos);

  ranks = Schedules(&allreduce::kTwoSync, 3, 12);
  ranks[2].schedule.rounds[0][0].src.count -= 1;
  EXPECT_NE(Execute(&ranks).find("expected"), std::string::npos);

  ranks = Schedules(&allreduce::kOneRound, 3, 12);
  for (auto& rank : ranks)
    std::erase_if(rank.schedule.rounds[0],
                  [](auto& s) { return s.kind == Action::Kind::kRecv; });
  EXPECT_NE(Execute(&ranks).find("left over"), std::string::npos);

  ranks = Schedules(&allreduce::kRing, 3, 12);
  ranks[0].schedule.rounds[0][0].raw = false;
  SymbolicOptions options;
  options.mean = MeanScaling::kBeforeSum;
  EXPECT_NE(Execute(&ranks, options).find("unscaled"), std::string::npos);

  ranks = Schedules(&allreduce::kRing, 3, 12);
  ranks[0].schedule.scratch_elements = 1;
  EXPECT_NE(Execute(&ranks).find("slice"), std::string::npos);

  options = {};
  for (const Algorithm algorithm : {&allreduce::kGdraa, &allreduce::kTwoSync}) {
    ranks = Schedules(algorithm, 3, 12);
    std::swap(ranks[2].schedule.rounds[0][0].there.offset,
              ranks[0].schedule.rounds[0][2].there.offset);
    EXPECT_NE(Execute(&ranks, options).find("elsewhere"), std::string::npos);
  }
  ranks = Schedules(&allreduce::kGdraa, 3, 12);
  ranks[2].schedule.rounds[0][0].there.offset += 1;
  EXPECT_NE(Execute(&ranks, options).find("between"), std::string::npos);
  ranks = Schedules(&allreduce::kGdraa, 3, 12);
  ranks[1].schedule.placing = 0;
  EXPECT_NE(Execute(&ranks, options).find("and rank 1 among 0"),
            std::string::npos);
  ranks = Schedules(&allreduce::kRing, 3, 12);
  for (auto& rank : ranks) rank.schedule.placing = 3;
  EXPECT_NE(Execute(&ranks, options).find("places 4 elements on 0"),
            std::string::npos);
}

TEST(SymbolicExecutor, SeesBitsDifferWhereNobodySettles) {
  for (Algorithm algorithm : allreduce::kTable) {
    if (algorithm->memory == CollectiveAlgorithm::Memory::kMustShare) {
      continue;  // Nothing travels.
    }
    auto ranks = Schedules(algorithm, 4, 64);
    FillWithFractions(3, &ranks);
    for (auto& rank : ranks) {
      for (auto& round : rank.schedule.rounds) {
        for (Action& action : round) action.settle = false;
      }
    }
    SymbolicOptions options;
    options.wire_quantum = 1.0 / 64;
    ASSERT_EQ(Execute(&ranks, options), "");
    int differing = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      differing += ranks[0].data[i].value != ranks[1].data[i].value ? 1 : 0;
    }
    EXPECT_GT(differing, 0) << algorithm->name;
  }
}

TEST(MakeSchedule, MakesWhatEveryNameSays) {
  const Topology topology{{0, 0, 1, 1, 1}};
  for (Algorithm algorithm : allreduce::kTable) {
    for (bool one_sided : {false, true}) {
      std::vector<SymbolicRank> ranks(5);
      for (std::size_t r = 0; r < 5; ++r) {
        ranks[r].schedule = MakeSchedule(*algorithm, static_cast<int>(r),
                                         {5, topology, one_sided}, 33);
        ranks[r].data.resize(33);
        for (auto& cell : ranks[r].data) cell.value = 1 << r;
      }
      SymbolicOptions options;
      if (algorithm == &allreduce::kTwoLevel) options.topology = topology;
      ASSERT_EQ(Execute(&ranks, options), "") << Name(algorithm);
      for (const auto& rank : ranks) {
        for (const auto& cell : rank.data) EXPECT_EQ(cell.value, 31);
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
