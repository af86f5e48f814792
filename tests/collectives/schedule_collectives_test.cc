// The other collectives, from every root, with uneven and empty parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

namespace gradientflow::testing {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 97};
constexpr double kQuantum = 1.0 / 64;
using Counts = std::vector<std::size_t>;
using Algorithm = const CollectiveAlgorithm*;
using namespace collectives;

class CollectiveSchedule : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  std::vector<SymbolicRank> Make(
      const std::function<Schedule(int)>& make) const {
    std::vector<SymbolicRank> ranks(static_cast<std::size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      ranks[static_cast<std::size_t>(r)].schedule = make(r);
    }
    return ranks;
  }
};

// Element i of rank r's contribution: exact on the wire.
double Value(std::size_t r, std::size_t i) {
  return static_cast<double>(r * 1000 + i + 1);
}
Cells Contribution(std::size_t r, std::size_t count) {
  Cells cells(count);
  for (std::size_t i = 0; i < count; ++i) cells[i].value = Value(r, i);
  return cells;
}

SymbolicOptions Plain() {
  SymbolicOptions options;
  options.plain = true;
  return options;
}

SymbolicOptions LossyWire() {
  SymbolicOptions options = Plain();
  options.wire_quantum = kQuantum;
  return options;
}

CallShape Rooted(int size, int root, const Counts& parts = {}) {
  CallShape shape;
  shape.size = size;
  shape.root = root;
  shape.parts = parts;
  return shape;
}

TEST_P(CollectiveSchedule, BroadcastGivesTheRootsBitsToAll) {
  for (Algorithm broadcast : AlgorithmsOf(CollectiveKind::kBroadcast)) {
    for (int root = 0; root < size(); ++root) {
      for (std::size_t count : kCounts) {
        auto ranks = Make([&](int r) {
          return broadcast->make(r, Rooted(size(), root), count);
        });
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          ranks[r].data = Contribution(r, count);
          for (Cell& cell : ranks[r].data) cell.value /= 3;
        }
        const auto wanted = ranks[static_cast<std::size_t>(root)].data;
        ASSERT_EQ(Execute(&ranks, LossyWire()), "");
        for (const auto& rank : ranks) {
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(rank.data[i].value, ranks[0].data[i].value)
                << broadcast->name << " from " << root;
            ASSERT_NEAR(rank.data[i].value, wanted[i].value, kQuantum);
          }
        }
      }
    }
  }
}

TEST(BroadcastSchedule, TreeIsLogarithmicallyDeep) {
  // The depth of a rank: hops to the root along its receives.
  const auto parent = [](int r) {
    return kTreeBroadcast.make(r, Rooted(100, 3), 1).rounds[0][0].peer;
  };
  for (int r = 0; r < 100; ++r) {
    int depth = 0;
    for (int at = r; at != 3; at = parent(at)) ++depth;
    EXPECT_LE(depth, 7) << "rank " << r;
  }
}

TEST_P(CollectiveSchedule, ReduceLeavesTheMeanOnTheRoot) {
  for (Algorithm reduce : AlgorithmsOf(CollectiveKind::kReduce)) {
    for (int root = 0; root < size(); ++root) {
      for (std::size_t count : kCounts) {
        for (auto mean : {MeanScaling::kBeforeSum, MeanScaling::kAfterSum}) {
          auto ranks = Make([&](int r) {
            return reduce->make(r, Rooted(size(), root), count);
          });
          for (std::size_t r = 0; r < ranks.size(); ++r) {
            ranks[r].input = Contribution(r, count);
          }
          const auto at = static_cast<std::size_t>(root);
          ranks[at].data.resize(count);
          SymbolicOptions options = Plain();
          options.mean = mean;
          ASSERT_EQ(Execute(&ranks, options), "")
              << reduce->name << " to " << root;
          for (std::size_t i = 0; size() > 1 && i < count; ++i) {
            double sum = 0;
            for (std::size_t r = 0; r < ranks.size(); ++r) sum += Value(r, i);
            ASSERT_NEAR(ranks[at].data[i].value, sum / size(), 1e-9)
                << reduce->name;
            ASSERT_EQ(ranks[at].data[i].scaled, 1) << reduce->name;
          }
        }
      }
    }
  }
}

TEST(ReduceSchedule, AddsInAnOrderThatDoesNotDependOnTheRoot) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> values(-1, 1);
  std::vector<Cells> inputs(7, Cells(50));
  for (auto& input : inputs) {
    for (Cell& cell : input) cell.value = values(random);
  }
  for (Algorithm reduce : {&kDirectReduce, &kBinomialReduce}) {
    Cells first;
    for (int root = 0; root < 7; ++root) {
      std::vector<SymbolicRank> ranks(7);
      for (std::size_t r = 0; r < 7; ++r) {
        ranks[r].schedule =
            reduce->make(static_cast<int>(r), Rooted(7, root), 50);
        ranks[r].input = inputs[r];
      }
      auto& result = ranks[static_cast<std::size_t>(root)].data;
      result.resize(50);
      ASSERT_EQ(Execute(&ranks, Plain()), "");
      if (root == 0) first = result;
      for (std::size_t i = 0; i < 50; ++i) {
        ASSERT_EQ(result[i].value, first[i].value) << "root " << root;
        double in_rank_order = 0;
        for (const Cells& input : inputs) in_rank_order += input[i].value;
        if (reduce == &kDirectReduce) {
          ASSERT_EQ(result[i].value, in_rank_order);
        }
      }
    }
  }
}

TEST_P(CollectiveSchedule, AllgatherGivesAllBlocksToAllWithTheSameBits) {
  std::mt19937 random(static_cast<unsigned>(size()));
  for (Algorithm allgather : AlgorithmsOf(CollectiveKind::kAllgather)) {
    for (std::size_t count : kCounts) {
      for (const bool uneven : {false, true}) {
        Counts parts(ranks(), count);
        for (auto& n : parts) n = uneven ? random() % (count + 1) : count;
        auto ranks = Make([&](int r) {
          return allgather->make(
              r, Rooted(size(), 0, uneven ? parts : Counts()), count);
        });
        Cells wanted;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          ranks[r].input = Contribution(r, parts[r]);
          for (Cell& cell : ranks[r].input) cell.value /= 3;
          wanted.insert(wanted.end(), ranks[r].input.begin(),
                        ranks[r].input.end());
        }
        for (auto& rank : ranks) rank.data.resize(wanted.size());
        ASSERT_EQ(Execute(&ranks, LossyWire()), "") << allgather->name;
        for (const auto& rank : ranks) {
          for (std::size_t i = 0; i < rank.data.size(); ++i) {
            ASSERT_EQ(rank.data[i].value, ranks[0].data[i].value);
            ASSERT_NEAR(rank.data[i].value, wanted[i].value, kQuantum)
                << allgather->name;
          }
        }
      }
    }
  }
}

TEST_P(CollectiveSchedule, ReduceScatterLeavesItsBlocksMeanOnEachRank) {
  for (Algorithm algorithm : AlgorithmsOf(CollectiveKind::kReduceScatter)) {
    for (std::size_t count : kCounts) {
      for (auto mean : {MeanScaling::kNone, MeanScaling::kBeforeSum,
                        MeanScaling::kAfterSum}) {
        auto ranks = Make([&](int r) {
          return algorithm->make(r, Rooted(size(), 0), count);
        });
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          ranks[r].input = Contribution(r, count * ranks.size());
          ranks[r].data.resize(count);
        }
        SymbolicOptions options = Plain();
        options.mean = mean;
        ASSERT_EQ(Execute(&ranks, options), "") << algorithm->name;
        const bool scaled = mean != MeanScaling::kNone && size() > 1;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          for (std::size_t i = 0; i < count; ++i) {
            double sum = 0;
            for (std::size_t q = 0; q < ranks.size(); ++q) {
              sum += Value(q, r * count + i);
            }
            const Cell& cell = ranks[r].data[i];
            ASSERT_NEAR(cell.value, scaled ? sum / size() : sum, 1e-9)
                << algorithm->name << " rank " << r;
            ASSERT_EQ(cell.scaled, scaled ? 1 : 0);
          }
        }
      }
    }
  }
}

std::size_t Messages(const Schedule& schedule) {
  std::size_t messages = 0;
  for (const auto& round : schedule.rounds) {
    for (const Action& action : round)
      messages += action.kind == Action::Kind::kSend;
  }
  return messages;
}

// What makes the algorithms for small buffers worth having.
TEST(CollectiveSchedule, SmallBuffersTakeLogarithmicallyManyRounds) {
  for (const int size : {16, 100}) {
    const std::size_t rounds = size == 16 ? 4 : 7;
    Counts parts(static_cast<std::size_t>(size), 1);
    CallShape equal = Rooted(size, 0, parts);
    equal.recv_parts = parts;
    for (int r = 0; r < size; ++r) {
      const Schedule gathers = kDoublingAllgather.make(r, Rooted(size, 0), 1);
      EXPECT_EQ(gathers.rounds.size(), rounds + 1);  // And a copy.
      EXPECT_LE(Messages(gathers), 2 * rounds);
      const Schedule reduces =
          kHalvingReduceScatter.make(r, Rooted(size, 0), 1);
      EXPECT_EQ(reduces.rounds.size(), rounds + 1);
      EXPECT_LE(Messages(reduces), 3 * rounds);
      EXPECT_EQ(kBruckAllToAll.make(r, equal, 0).rounds.size(), rounds + 1);
      EXPECT_LE(kBinomialReduce.make(r, Rooted(size, 5), 1).rounds.size(),
                rounds + 1);
      EXPECT_LE(Messages(kBinomialScatter.make(r, Rooted(size, 5, parts), 0)),
                2 * rounds);
    }
  }
}

TEST_P(CollectiveSchedule, AllToAllDeliversUnevenParts) {
  std::mt19937 random(static_cast<unsigned>(size()));
  for (int trial = 0; trial < 10; ++trial) {
    // sends[r][q] elements from r to q; every third part is empty.
    std::vector<Counts> sends(ranks(), Counts(ranks()));
    for (auto& row : sends) {
      for (auto& n : row) n = random() % 3 == 0 ? 0 : random() % 20;
    }
    const auto column = [&](std::size_t q) {
      Counts recvs;
      for (const auto& row : sends) recvs.push_back(row[q]);
      return recvs;
    };
    auto all = Make([&](int r) {
      const auto at = static_cast<std::size_t>(r);
      CallShape shape = Rooted(size(), 0, sends[at]);
      shape.recv_parts = column(at);
      return kPairwiseAllToAll.make(r, shape, 0);
    });
    for (std::size_t r = 0; r < all.size(); ++r) {
      for (std::size_t q = 0; q < all.size(); ++q) {
        const auto part = Contribution(r * 100 + q, sends[r][q]);
        all[r].input.insert(all[r].input.end(), part.begin(), part.end());
      }
      const Counts recvs = column(r);
      all[r].data.resize(
          std::accumulate(recvs.begin(), recvs.end(), std::size_t{0}));
    }
    ASSERT_EQ(Execute(&all), "");
    for (std::size_t q = 0; q < all.size(); ++q) {
      std::size_t at = 0;
      for (std::size_t r = 0; r < all.size(); ++r) {
        for (std::size_t i = 0; i < sends[r][q]; ++i) {
          ASSERT_EQ(all[q].data[at++].value, Value(r * 100 + q, i));
        }
      }
    }
  }
}

TEST_P(CollectiveSchedule, AllToAllDeliversEqualParts) {
  for (Algorithm algorithm : AlgorithmsOf(CollectiveKind::kAllToAll)) {
    for (std::size_t count : kCounts) {
      CallShape shape = Rooted(size(), 0, Counts(ranks(), count));
      shape.recv_parts = shape.parts;
      auto all = Make([&](int r) { return algorithm->make(r, shape, count); });
      for (std::size_t r = 0; r < all.size(); ++r) {
        all[r].input = Contribution(r, count * ranks());
        all[r].data.resize(count * ranks());
      }
      ASSERT_EQ(Execute(&all, Plain()), "") << algorithm->name;
      for (std::size_t q = 0; q < all.size(); ++q) {
        for (std::size_t i = 0; i < count * ranks(); ++i) {
          ASSERT_EQ(all[q].data[i].value,
                    Value(i / count, q * count + i % count))
              << algorithm->name;
        }
      }
    }
  }
}

TEST_P(CollectiveSchedule, GatherAndScatterMoveUnevenParts) {
  std::mt19937 random(static_cast<unsigned>(size()));
  for (int root = 0; root < size(); ++root) {
    Counts counts(ranks());
    for (auto& n : counts) n = random() % 3 == 0 ? 0 : random() % 20;
    const auto at = static_cast<std::size_t>(root);
    Cells whole;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const auto part = Contribution(r, counts[r]);
      whole.insert(whole.end(), part.begin(), part.end());
    }

    const CallShape shape = Rooted(size(), root, counts);
    for (Algorithm algorithm : AlgorithmsOf(CollectiveKind::kGather)) {
      auto gather = Make([&](int r) { return algorithm->make(r, shape, 0); });
      for (std::size_t r = 0; r < ranks(); ++r) {
        gather[r].input = Contribution(r, counts[r]);
      }
      gather[at].data.resize(whole.size());
      ASSERT_EQ(Execute(&gather, Plain()), "") << algorithm->name << root;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        ASSERT_EQ(gather[at].data[i].value, whole[i].value) << algorithm->name;
      }
    }
    for (Algorithm algorithm : AlgorithmsOf(CollectiveKind::kScatter)) {
      auto scatter = Make([&](int r) { return algorithm->make(r, shape, 0); });
      for (std::size_t r = 0; r < ranks(); ++r) {
        scatter[r].data.resize(counts[r]);
      }
      scatter[at].input = whole;
      ASSERT_EQ(Execute(&scatter, Plain()), "") << algorithm->name << root;
      for (std::size_t r = 0; r < ranks(); ++r) {
        for (std::size_t i = 0; i < counts[r]; ++i) {
          ASSERT_EQ(scatter[r].data[i].value, Value(r, i)) << algorithm->name;
        }
      }
    }
  }
}

TEST_P(CollectiveSchedule, NoRankLeavesTheBarrierBeforeAllHaveEntered) {
  for (int late = 0; late < size(); ++late) {
    auto ranks = Make([&](int r) {
      return kDisseminationBarrier.make(r, Rooted(size(), 0), 0);
    });
    for (auto& rank : ranks) rank.data.resize(1);
    SymbolicOptions options;
    // All ranks but one first run as far as they can.
    for (int turn = 0; turn < 10; ++turn) {
      for (int r = 0; r < size(); ++r) {
        if (r != late) options.turns.push_back(r);
      }
    }
    options.turns.push_back(late);
    SymbolicExecutor executor(&ranks, options);
    ASSERT_EQ(executor.Run(), "");
    EXPECT_TRUE(executor.all_began_before_any_finished()) << "late " << late;
  }
}

TEST(SymbolicExecutor, SeesARankLeaveABarrierEarly) {
  std::vector<SymbolicRank> ranks(4);
  for (int r = 0; r < 4; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.schedule = kDisseminationBarrier.make(r, Rooted(4, 0), 0);
    rank.schedule.rounds.pop_back();  // Neighbours only.
    rank.data.resize(1);
  }
  SymbolicOptions options;
  options.turns = {0, 1, 2, 0, 1, 2, 0, 1, 2, 3};
  SymbolicExecutor executor(&ranks, options);
  ASSERT_EQ(executor.Run(), "");
  EXPECT_FALSE(executor.all_began_before_any_finished());
}

INSTANTIATE_TEST_SUITE_P(Sizes, CollectiveSchedule,
                         ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
                                           12, 13, 14, 15, 16, 17, 32));

TEST(CollectiveSchedule, SumsMoreRanksThanOneActionTakes) {
  constexpr int kSize = kMaxReduceParties + 6;
  std::vector<SymbolicRank> ranks(kSize);
  for (int r = 0; r < kSize; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.schedule = kDirectReduce.make(r, Rooted(kSize, 66), 10);
    rank.input = Contribution(static_cast<std::size_t>(r), 10);
  }
  ranks[66].data.resize(10);
  ASSERT_EQ(Execute(&ranks), "");
  for (std::size_t i = 0; i < 10; ++i) {
    double sum = 0;
    for (std::size_t r = 0; r < kSize; ++r) sum += Value(r, i);
    EXPECT_EQ(ranks[66].data[i].value, sum);
  }
}

}  // namespace
}  // namespace gradientflow::testing
