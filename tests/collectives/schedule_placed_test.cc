#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

// The allreduce whose messages are placed: what it sends, where that lands, and
// when it is chosen.
namespace gradientflow::testing {
namespace {

// The rounds in which a rank waits for others.
int SyncsOf(const Schedule& schedule) {
  int syncs = 0;
  for (const auto& round : schedule.rounds) {
    syncs += std::any_of(round.begin(), round.end(), [](const Action& action) {
      return action.kind == Action::Kind::kRecv ||
             action.kind == Action::Kind::kSync;
    });
  }
  return syncs;
}

TEST(PlacedAllreduce, SynchronisesTwiceAndSendsTwoMessagesPerPeer) {
  for (int size = 2; size <= 9; ++size) {
    for (int r = 0; r < size; ++r) {
      const Schedule schedule =
          MakeSchedule(allreduce::kGdraa, r, {.size = size}, 1000);
      EXPECT_EQ(SyncsOf(schedule), 2);
      std::vector<int> sent(static_cast<std::size_t>(size));
      for (const auto& round : schedule.rounds) {
        int next = (r + 1) % size;
        for (const Action& action : round) {
          if (action.kind != Action::Kind::kSend) continue;
          EXPECT_EQ(action.peer, next) << "ranks begin with different peers";
          next = (next + 1) % size;
          ++sent[static_cast<std::size_t>(action.peer)];
        }
      }
      for (int q = 0; q < size; ++q) {
        EXPECT_EQ(sent[static_cast<std::size_t>(q)], q == r ? 0 : 2);
      }
    }
    EXPECT_EQ(SyncsOf(MakeSchedule(allreduce::kRing, 0, {.size = size}, 1000)),
              2 * (size - 1));
  }
}

TEST(PlacedAllreduce, NeverWritesWherePeersStillRead) {
  for (int size = 1; size <= 9; ++size) {
    for (const std::size_t count : {0, 1, 2, 7, 16, 97, 1000}) {
      for (unsigned seed = 0; seed < 20; ++seed) {
        std::mt19937 random(seed);
        std::vector<SymbolicRank> ranks(static_cast<std::size_t>(size));
        std::vector<double> sum(count);
        for (int r = 0; r < size; ++r) {
          auto& rank = ranks[static_cast<std::size_t>(r)];
          rank.schedule =
              MakeSchedule(allreduce::kGdraa, r, {.size = size}, count);
          rank.data.resize(count);
          for (std::size_t i = 0; i < count; ++i) {
            rank.data[i].value = std::normal_distribution<double>()(random);
            sum[i] += rank.data[i].value;
          }
        }
        SymbolicOptions options;
        options.turns.resize(static_cast<std::size_t>(size));
        std::iota(options.turns.begin(), options.turns.end(), 0);
        std::shuffle(options.turns.begin(), options.turns.end(), random);
        ASSERT_EQ(Execute(&ranks, options), "");
        for (const auto& rank : ranks) {
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(rank.data[i].value, sum[i]) << size << " ranks";
          }
        }
      }
    }
  }
}

// The links of a network with remote writes.
CallQuestion AskPlaced(int size, std::size_t count) {
  CallQuestion question;
  question.hosts = HostMap(size);
  question.count = count;
  question.all_place = true;
  question.model.across = {.latency_seconds = 4e-6,
                           .seconds_per_byte = 8e-11,
                           .reduce_seconds_per_byte = 1e-10,
                           .message_seconds = 3e-7};
  return question;
}

const CollectiveAlgorithm* Chosen(const CallQuestion& question) {
  return ChooseAlgorithm(CollectiveKind::kAllreduce, question).algorithm;
}

TEST(ChooseAllreduce, PlacesMessagesWhereLatencyCountsMoreThanTheCrowd) {
  constexpr std::size_t kMiB = std::size_t{1} << 18;  // In float32.
  for (const int size : {3, 4, 5, 7, 8, 16}) {
    const auto chosen = [&](std::size_t count) {
      return Chosen(AskPlaced(size, count));
    };
    EXPECT_EQ(chosen(kMiB / 16), &allreduce::kGdraa) << size;
    EXPECT_NE(chosen(64 * kMiB), &allreduce::kGdraa) << size;
    for (std::size_t count = 1; count < 256 * kMiB; count *= 2) {
      EXPECT_NE(chosen(count), &allreduce::kTwoSync) << size << " " << count;
    }
    CallQuestion without = AskPlaced(size, kMiB / 16);
    without.all_place = false;
    EXPECT_NE(Chosen(without), &allreduce::kGdraa);
  }
}

// The published form of two_sync, in which many bytes that meet at one rank
// count for more.
TEST(ChooseAllreduce, ChargesForTheCrowd) {
  CallQuestion question = AskPlaced(4, 1000);
  const LinkModel link{1, 0.01, 0.001, 0};
  question.model = {link, link};
  const auto predict = [&](int size) {
    question.hosts = HostMap(size);
    return PredictSeconds(CollectiveKind::kAllreduce, allreduce::kGdraa,
                          question);
  };
  EXPECT_DOUBLE_EQ(predict(4), 2 + 1.3 * 60 + 4);
  EXPECT_DOUBLE_EQ(predict(2), 2 + 40 + 4);
  EXPECT_EQ(predict(1), 0);
}

// Four hosts of two ranks: two syncs inside, and four ranks on each rail, which
// share their hosts' lines.
CallQuestion AskRails(std::size_t count, std::size_t placed_bytes) {
  CallQuestion question = AskPlaced(8, count);
  question.hosts = HostMap(8, {{0, 0, 1, 1, 2, 2, 3, 3}});
  question.all_place = false;
  question.hosts_share_memory = true;
  question.placed_bytes = placed_bytes;
  return question;
}

TEST(ChooseAllreduce, ChargesRailsForWhatTheyPlace) {
  CallQuestion question = AskRails(1000, 4000);
  question.model = {LinkModel{3, 0, 0.0005, 0}, LinkModel{1, 0.01, 0.001, 0}};
  const auto predict = [&] {
    return PredictSeconds(CollectiveKind::kAllreduce, allreduce::kTwoLevel,
                          question);
  };
  // Blocks of 2000 bytes on lines that two rails share.
  const double inside = 2 * 0.5 * 3 + 2 * 2 * 2000 * 0.0005;
  const double rounds =
      inside + 2 + 2 * 0.75 * 2000 * 0.02 * 1.3 + 2000 * 0.001;
  const double halving =
      inside + 4 + 2 * 0.75 * 2000 * 0.02 + 0.75 * 2000 * 0.001;
  const double one_round =
      inside + 1 + 3 * 2000 * 0.02 * 1.3 + 4 * 2000 * 0.001;
  EXPECT_DOUBLE_EQ(predict(), halving);
  question.model.across.latency_seconds = 40;
  EXPECT_DOUBLE_EQ(predict(), rounds + 2 * 39);
  question.placed_bytes = 1999;
  EXPECT_DOUBLE_EQ(predict(), one_round + 39);
}

TEST(ChooseAllreduce, PlacesMessagesOfRailsWhereThatIsFastest) {
  const auto placing = [](std::size_t count) {
    const CallQuestion question = AskRails(count, std::size_t{1} << 20);
    EXPECT_EQ(Chosen(question), &allreduce::kTwoLevel) << count;
    CallShape shape;
    shape.size = 8;
    shape.topology = {{0, 0, 1, 1, 2, 2, 3, 3}};
    shape.one_sided = true;
    shape.costs = {question.model, question.model};
    shape.placed_bytes = question.placed_bytes;
    return allreduce::kTwoLevel.make(0, shape, count).placing;
  };
  EXPECT_EQ(placing(8192), 4);
  EXPECT_EQ(placing(std::size_t{1} << 19), 0) << "the crowd costs more there";
}

TEST(RunnableAlgorithm, StandsInForPlacesThatAreMissing) {
  using namespace allreduce;
  EXPECT_EQ(RunnableAlgorithm(&kGdraa, 8, false, true), &kGdraa);
  EXPECT_EQ(RunnableAlgorithm(&kGdraa, 8, true, false), &kTwoSync);
  EXPECT_EQ(RunnableAlgorithm(&kShared, 8, false, true), &kTwoSync);
}

}  // namespace
}  // namespace gradientflow::testing
