// The predicted costs of schedules, and which schedule is chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/player.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

using Algorithm = const CollectiveAlgorithm*;
constexpr auto kAllreduce = CollectiveKind::kAllreduce;

AlgorithmChoice ChooseAllreduce(const CallQuestion& question) {
  return ChooseAlgorithm(kAllreduce, question);
}

constexpr LinkModel kLink{30e-6, 1e-9, 2e-10, 0};

std::vector<Schedule> SchedulesOf(Algorithm algorithm, int size,
                                  const Topology& topology, std::size_t count,
                                  bool one_sided) {
  std::vector<Schedule> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(
        MakeSchedule(*algorithm, r, {size, topology, one_sided}, count));
  }
  return ranks;
}

double Played(Algorithm algorithm, const CallQuestion& question,
              const Topology& topology) {
  return PriceSchedules(
      SchedulesOf(algorithm, question.size(), topology, question.count,
                  question.hosts_share_memory),
      topology, question.wire_element_bytes, question.model);
}

// As if all ranks were on one host over links like `link`, for which the
// predictions are the published formulas.
double Formula(const CollectiveAlgorithm& algorithm, int size, double bytes,
               const LinkModel& link) {
  CallQuestion question;
  question.hosts =
      HostMap(size, {std::vector<int>(static_cast<std::size_t>(size))});
  question.count = static_cast<std::size_t>(bytes) / 4;
  question.model.inside = link;
  question.all_share_memory = true;
  return PredictSeconds(kAllreduce, algorithm, question);
}

TEST(CostModel, FormulasEqualThePlayedSchedulesOnEqualLinks) {
  // 720720 elements: all blocks are even.
  constexpr std::size_t kCount = 720720;
  const double bytes = 4.0 * kCount;
  const CostModel model{kLink, kLink};
  for (int size : {2, 3, 4, 5, 7, 8, 12, 16}) {
    for (Algorithm algorithm : allreduce::kTable) {
      const double formula = Formula(*algorithm, size, bytes, kLink);
      if (std::isinf(formula)) continue;  // Two levels, or places.
      const double played = PriceSchedules(
          SchedulesOf(algorithm, size, {}, kCount, false), {}, 4, model);
      const double near = 1e-9;
      // If ranks fold, those without a partner do not arrive early and block
      // others.
      const bool folds =
          algorithm == &allreduce::kHalvingDoubling && (size & (size - 1)) != 0;
      EXPECT_GE(played, formula - near) << algorithm->name << " " << size;
      EXPECT_LE(played, folds ? 1.2 * formula : formula + near)
          << algorithm->name << " " << size;
    }
  }
}

TEST(CostModel, ClosedFormsAreThePublishedOnes) {
  // 4 ranks, 4000 bytes, a = 1, b = 0.01, c = 0.001: computed by hand.
  const LinkModel link{1, 0.01, 0.001, 0};
  using namespace allreduce;
  EXPECT_DOUBLE_EQ(Formula(kRing, 4, 4000, link), 6 + 60 + 3);
  EXPECT_DOUBLE_EQ(Formula(kHalvingDoubling, 4, 4000, link), 4 + 60 + 3);
  EXPECT_DOUBLE_EQ(Formula(kTwoSync, 4, 4000, link), 2 + 60 + 4);
  EXPECT_DOUBLE_EQ(Formula(kOneRound, 4, 4000, link), 1 + 120 + 16);
  EXPECT_DOUBLE_EQ(Formula(kShared, 4, 4000, link), 2 * 0.5 + 8);
  EXPECT_DOUBLE_EQ(Formula(kHalvingDoubling, 5, 4000, link), 67 + 2 + 80 + 4);
  for (Algorithm algorithm : kTable) {
    // One rank has no two levels, and there are no places.
    if (algorithm == &kTwoLevel || algorithm == &kGdraa) continue;
    EXPECT_EQ(Formula(*algorithm, 1, 4000, link), 0) << algorithm->name;
  }
}

TEST(CostModel, MessagesCostTheirSenderOneAfterTheOther) {
  LinkModel link = kLink;
  link.message_seconds = 5e-6;
  const CostModel model{link, link};
  const auto played = PriceSchedules(
      SchedulesOf(&allreduce::kOneRound, 9, {}, 1, false), {}, 4, model);
  EXPECT_NEAR(played, Formula(allreduce::kOneRound, 9, 4, link), 1e-7);
  EXPECT_GT(played, 8 * 5e-6);
}

TEST(CostModel, RanksOfAHostShareItsLine) {
  // Two hosts of four ranks: two_sync sends 4 * 4 * n/8 between them per round
  // and direction.
  const Topology topology{{0, 0, 0, 0, 1, 1, 1, 1}};
  const CostModel model{{0, 0, 0, 0}, {0, 1e-9, 0, 0}};
  constexpr std::size_t kCount = 8000;
  const double played = PriceSchedules(
      SchedulesOf(&allreduce::kTwoSync, 8, topology, kCount, false), topology,
      4, model);
  EXPECT_NEAR(played, 2 * 16 * 4000e-9, 0.3 * 2 * 16 * 4000e-9);
  EXPECT_GE(played, 2 * 16 * 4000e-9 * 0.999);
}

TEST(CostModel, SchedulesThatDoNotFitTogetherNeverEnd) {
  auto ranks = SchedulesOf(&allreduce::kRing, 3, {}, 30, false);
  ranks[1].rounds.clear();
  EXPECT_EQ(PriceSchedules(ranks, {}, 4, TypicalCostModel()),
            std::numeric_limits<double>::infinity());
}

TEST(CostModel, SharedWorkCountsWithItsShare) {
  const LinkModel alone{1e-6, 2e-9, 3e-10, 4e-6};
  const LinkModel together{8e-6, 2e-9, 12e-10, 16e-6};
  const auto all = UnderLoad(alone, together, 1);
  EXPECT_EQ(all.latency_seconds, together.latency_seconds);
  EXPECT_EQ(all.message_seconds, together.message_seconds);
  const auto half = UnderLoad(alone, together, 0.5);
  EXPECT_EQ(half.latency_seconds, together.latency_seconds)
      << "who waits for a message also waits for a core";
  EXPECT_EQ(half.message_seconds, 8e-6);
  EXPECT_EQ(half.reduce_seconds_per_byte, 6e-10);
  // A line of its own is not shared.
  EXPECT_EQ(half.seconds_per_byte, 2e-9);
  EXPECT_EQ(UnderLoad(alone, together, 0.01).message_seconds, 4e-6);
  // The fewer ranks work, the more wait and take turns on their cores.
  LinkModel crowded = together;
  crowded.waiting_seconds = 40e-6;
  EXPECT_DOUBLE_EQ(UnderLoad(alone, crowded, 1).latency_seconds, 8e-6);
  EXPECT_DOUBLE_EQ(UnderLoad(alone, crowded, 0.25).latency_seconds, 38e-6);
}

TEST(HostMap, KnowsWhichPartOfTheRanksSendsAlongATree) {
  for (const int size : {1, 2, 3, 5, 7, 8, 16, 100}) {
    const HostMap hosts(size);
    double messages = 0;
    for (int k = 0; k < hosts.doublings(); ++k) {
      int senders = 0;
      for (int place = 1 << k; place < size; place += 2 << k) ++senders;
      EXPECT_DOUBLE_EQ(hosts.BranchShare(k) * size, senders) << size << k;
      messages += senders;
    }
    EXPECT_EQ(messages, size - 1);  // Each rank but the root gets one.
  }
}

CallQuestion Ask(int size, std::size_t count, const Topology& topology = {}) {
  CallQuestion question;
  question.hosts = HostMap(size, topology);
  question.count = count;
  question.model = TypicalCostModel();
  return question;
}

Topology HostsOf(int hosts, int ranks) {
  Topology topology;
  for (int r = 0; r < hosts * ranks; ++r) topology.host.push_back(r / ranks);
  return topology;
}

TEST(ChooseAllreduce, TakesOneRoundForTinyAndMoreRoundsForLargeBuffers) {
  EXPECT_EQ(ChooseAllreduce(Ask(4, 16)).algorithm, &allreduce::kOneRound);
  const auto large = ChooseAllreduce(Ask(4, 32 << 20)).algorithm;
  EXPECT_NE(large, &allreduce::kOneRound);
  // For hundreds of ranks with small buffers latency is logarithmic.
  EXPECT_EQ(ChooseAllreduce(Ask(512, 16)).algorithm,
            &allreduce::kHalvingDoubling);
  // The ring reduces least, which decides if there is no latency.
  auto bandwidth_only = Ask(3, 32 << 20);
  bandwidth_only.model.across.latency_seconds = 0;
  bandwidth_only.model.across.message_seconds = 0;
  EXPECT_EQ(ChooseAllreduce(bandwidth_only).algorithm, &allreduce::kRing);
}

TEST(ChooseAllreduce, TakesSharedMemoryWhereThereIsSome) {
  auto question = Ask(4, 1 << 20, {{3, 3, 3, 3}});
  EXPECT_NE(ChooseAllreduce(question).algorithm, &allreduce::kShared);
  question.all_share_memory = true;
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kShared);
  constexpr int kMany = kMaxReduceParties + 1;
  auto many = Ask(kMany, 1 << 20, HostsOf(1, kMany));
  many.all_share_memory = true;
  EXPECT_NE(ChooseAllreduce(many).algorithm, &allreduce::kShared);
}

TEST(ChooseAllreduce, TakesTwoLevelsWhereHostsHaveCompany) {
  auto question = Ask(16, 4 << 20, HostsOf(4, 4));
  question.hosts_share_memory = true;
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kTwoLevel);
  question.hosts = HostMap(16);
  EXPECT_NE(ChooseAllreduce(question).algorithm, &allreduce::kTwoLevel);
}

TEST(ChooseAllreduce, IsNotMuchSlowerThanTheBestPlayedSchedule) {
  const std::vector<std::vector<int>> topologies = {
      {0, 0},
      {0, 1},
      {0, 1, 2, 3},
      {0, 0, 1, 1},
      {0, 0, 0, 1, 1, 1, 2, 2, 2},
      {0, 0, 0, 1},
      {0, 1, 0, 1, 0, 1, 0, 1},
      {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}};
  for (const auto& host : topologies) {
    for (bool shared : {false, true}) {
      for (std::size_t count : {1, 1000, 30'000, 1'000'000, 20'000'000}) {
        auto question = Ask(static_cast<int>(host.size()), count, {host});
        question.hosts_share_memory = shared;
        question.all_share_memory =
            shared &&
            std::all_of(host.begin(), host.end(), [](int h) { return h == 0; });
        double best = std::numeric_limits<double>::infinity();
        Algorithm fastest = nullptr;
        for (Algorithm algorithm : allreduce::kTable) {
          if (std::isinf(PredictSeconds(kAllreduce, *algorithm, question)))
            continue;
          const double seconds = Played(algorithm, question, {host});
          if (seconds < best) fastest = algorithm;
          best = std::min(best, seconds);
        }
        const auto choice = ChooseAllreduce(question);
        EXPECT_LE(Played(choice.algorithm, question, {host}), 1.3 * best)
            << choice.reason << "; played fastest: " << Name(fastest) << " "
            << best * 1e3 << " ms, shared " << shared << ", hosts "
            << ::testing::PrintToString(host);
      }
    }
  }
}

TEST(ChooseAllreduce, SaysWhyAndAnswersEqualQuestionsAlike) {
  const auto question = Ask(4, 1 << 20);
  const auto choice = ChooseAllreduce(question);
  const std::string name = Name(choice.algorithm);
  EXPECT_EQ(choice.reason.rfind(name, 0), 0U) << choice.reason;
  EXPECT_NE(choice.reason.find("4194304 bytes, 4 ranks"), std::string::npos)
      << choice.reason;
  EXPECT_EQ(choice.seconds,
            PredictSeconds(kAllreduce, *choice.algorithm, question));
  EXPECT_EQ(ChooseAllreduce(question).reason, choice.reason);
}

TEST(ChooseAllreduce, AnswersForOneRankAndForNothing) {
  EXPECT_EQ(ChooseAllreduce(Ask(1, 1000)).seconds, 0);
  EXPECT_GE(ChooseAllreduce(Ask(4, 0)).seconds, 0);
}

double PlayedPart(CollectiveKind kind, Algorithm algorithm,
                  const CallQuestion& question, const Topology& topology) {
  CallShape shape;
  shape.size = question.size();
  shape.topology = topology;
  const std::vector<std::size_t> parts(topology.host.size(), question.count);
  if (kind != CollectiveKind::kAllgather) shape.parts = parts;
  shape.recv_parts = parts;
  // Segments that pass through the ranks follow each other.
  std::size_t length = question.count;
  if (algorithm->passes_on) {
    length = std::min(length, CutOf(kind, *algorithm, question).elements);
  }
  std::vector<Schedule> ranks;
  for (int r = 0; r < shape.size; ++r) {
    Schedule all;
    for (std::size_t begin = 0; begin < question.count; begin += length) {
      const Schedule segment =
          algorithm->make(r, shape, std::min(length, question.count - begin));
      all.rounds.insert(all.rounds.end(), segment.rounds.begin(),
                        segment.rounds.end());
    }
    ranks.push_back(std::move(all));
  }
  return PriceSchedules(ranks, topology, 4, question.model);
}

TEST(ChooseAlgorithm, IsNotMuchSlowerThanTheBestPlayedSchedule) {
  for (const Topology& topology :
       {HostsOf(2, 1), HostsOf(5, 1), HostsOf(16, 1), HostsOf(1, 8),
        HostsOf(2, 4), HostsOf(8, 2), HostsOf(3, 5)}) {
    for (int k = 1; k < kCollectiveKinds - 1; ++k) {
      const auto kind = static_cast<CollectiveKind>(k);
      for (std::size_t count : {1, 100, 3000, 100'000, 1'000'000}) {
        const auto question =
            Ask(static_cast<int>(topology.host.size()), count, topology);
        double best = std::numeric_limits<double>::infinity();
        Algorithm fastest = nullptr;
        for (Algorithm algorithm : AlgorithmsOf(kind)) {
          if (std::isinf(PredictSeconds(kind, *algorithm, question))) continue;
          const double seconds =
              PlayedPart(kind, algorithm, question, topology);
          if (seconds < best) fastest = algorithm;
          best = std::min(best, seconds);
        }
        const auto choice = ChooseAlgorithm(kind, question);
        EXPECT_LE(PlayedPart(kind, choice.algorithm, question, topology),
                  1.25 * best)
            << Name(kind) << ": " << choice.reason
            << "; played fastest: " << Name(fastest) << " " << best * 1e3
            << " ms, hosts " << ::testing::PrintToString(topology.host);
      }
    }
  }
}

// The most peers that a rank exchanges messages with.
std::size_t MostPeers(Algorithm algorithm, CallShape shape, std::size_t count) {
  shape.parts.assign(static_cast<std::size_t>(shape.size), count);
  shape.recv_parts = shape.parts;
  std::size_t most = 0;
  for (int r = 0; r < shape.size; ++r) {
    std::set<int> peers;
    for (const auto& round : MakeSchedule(*algorithm, r, shape, count).rounds) {
      for (const Action& action : round) {
        if (action.peer >= 0) peers.insert(action.peer);
      }
    }
    most = std::max(most, peers.size());
  }
  return most;
}

TEST(ChooseAlgorithm, NeedsFewLinksWhereThatIsBetter) {
  for (const int ranks : {65, 100}) {
    std::size_t most_otherwise = 0;
    for (int k = 0; k < kCollectiveKinds; ++k) {
      const auto kind = static_cast<CollectiveKind>(k);
      for (const std::size_t count : {1, 100, 1'000'000}) {
        // Large blocks travel directly: no other algorithm can run.
        if (count > 100 && kind != CollectiveKind::kAllreduce &&
            kind != CollectiveKind::kBroadcast) {
          continue;
        }
        CallQuestion question = Ask(ranks, count, HostsOf(ranks, 1));
        const CallShape shape{ranks, HostsOf(ranks, 1), false};
        most_otherwise = std::max(
            most_otherwise,
            MostPeers(ChooseAlgorithm(kind, question).algorithm, shape, count));
        question.few_links = true;
        const Algorithm chosen = ChooseAlgorithm(kind, question).algorithm;
        EXPECT_LE(MostPeers(chosen, shape, count), 2 * 7 + 2)
            << Name(kind) << " of " << count << " by " << Name(chosen);
      }
    }
    EXPECT_GT(most_otherwise, 60U);
  }
}

TEST(ChooseAlgorithm, NeedsManyLinksRatherThanNotRun) {
  CallQuestion question = Ask(100, 10'000'000, HostsOf(100, 1));
  question.few_links = true;
  EXPECT_STREQ(
      Name(ChooseAlgorithm(CollectiveKind::kAllToAll, question).algorithm),
      "pairwise");
}

// What choosing costs is counted, not timed: the numbers that a price adds up
// grow with the logarithm of the number of ranks.
TEST(ChooseAlgorithm, AddsUpFewTermsForThousandsOfRanks) {
  for (int kind = 0; kind < kCollectiveKinds; ++kind) {
    for (const Topology& topology :
         {Topology(), HostsOf(4096, 1), HostsOf(512, 8)}) {
      const auto choice = ChooseAlgorithm(static_cast<CollectiveKind>(kind),
                                          Ask(4096, 1000, topology));
      EXPECT_NE(choice.algorithm, nullptr);
      EXPECT_GT(choice.terms, 0);
      EXPECT_LE(choice.terms, 80) << choice.reason;
    }
  }
}

// Eight ranks on few cores: a message takes eight times as long if all ranks
// send one. Only the last round of a tree has four senders, but every round of
// an allgather has eight. A rank that waits for a core waits for all others.
TEST(ChooseAlgorithm, KnowsThatBusyRanksSlowEachOtherDown) {
  CallQuestion question = Ask(8, 64 << 10);
  const LinkModel alone{10e-6, 0.3e-9, 0, 10e-6};
  const LinkModel together{80e-6, 2.4e-9, 0, 80e-6};
  question.alone = CostModel{alone, alone};
  const auto broadcast = [&] {
    return ChooseAlgorithm(CollectiveKind::kBroadcast, question).algorithm;
  };
  question.model = {alone, alone};
  EXPECT_EQ(broadcast(), &collectives::kScatterAllgatherBroadcast);
  question.model = {together, together};
  EXPECT_EQ(broadcast(), &collectives::kTreeBroadcast);
  EXPECT_DOUBLE_EQ(PredictSeconds(CollectiveKind::kBroadcast,
                                  collectives::kTreeBroadcast, question),
                   3 * 80e-6 + (1 + 2 + 4) * (10e-6 + 0.3e-9 * (256 << 10)) +
                       (2 + 2 * 1) * 0.3e-9 * ((128 << 10) - 14480));
}

// If there are two elements, two ranks own one each, and the blocks of the
// others are empty: nothing is sent for them.
TEST(ChooseAlgorithm, DoesNotPayForEmptyBlocks) {
  CallQuestion question = Ask(8, 2);
  const LinkModel alone{4e-6, 0, 0, 20e-6};
  const LinkModel together{22e-6, 0, 0, 48e-6};
  question.model = {together, together};
  question.alone = CostModel{alone, alone};
  const auto predict = [&](Algorithm algorithm) {
    return PredictSeconds(kAllreduce, *algorithm, question);
  };
  EXPECT_DOUBLE_EQ(predict(&allreduce::kTwoSync),
                   2 * (22e-6 + 7 * 0.5 * 24e-6));
  EXPECT_DOUBLE_EQ(predict(&allreduce::kHalvingDoubling),
                   2 * (70e-6 + (22e-6 + 24e-6) + (22e-6 + 20e-6)));
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kTwoSync);
  question.count = 8000;
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kOneRound);
}

// Four leaders work between hosts while nine ranks wait. Their messages cost
// what they cost alone, but a leader waits for a core as long as if all ranks
// sent messages. The two rounds inside are free here.
TEST(ChooseAlgorithm, KnowsThatOtherRanksWaitForTheLeaders) {
  CallQuestion question =
      Ask(13, 1000, {{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3}});
  const LinkModel alone{10e-6, 0, 0, 10e-6};
  const LinkModel together{32.5e-6, 0, 0, 32.5e-6};
  question.model = {LinkModel(), together};
  question.alone = CostModel{LinkModel(), alone};
  EXPECT_DOUBLE_EQ(PredictSeconds(kAllreduce, allreduce::kTwoLevel, question),
                   4 * (10e-6 + 32.5e-6));
}

TEST(ChooseAlgorithm, PricesTheSegmentsAndTheWindow) {
  const LinkModel link{1, 0.01, 0.001, 0};
  CallQuestion question;
  question.hosts = HostMap(4);
  question.model = {link, link};
  question.count = 4000;
  question.segment_bytes = 4000;  // Four segments: a window of two is too few.
  question.window = 2;
  // The closed form of one segment, and of a rank's own work on it.
  const double one = 2 + 60 + 4;
  const double work = 60 + 4;
  const auto predict = [&] {
    return PredictSeconds(kAllreduce, allreduce::kTwoSync, question);
  };
  EXPECT_DOUBLE_EQ(predict(), one + 3 * work);
  question.model.across.latency_seconds = 100;
  EXPECT_DOUBLE_EQ(predict(), 264 + 3 * 264.0 / 2);
}

TEST(AllreduceNames, ParseToWhatTheyName) {
  for (Algorithm algorithm : allreduce::kTable) {
    const auto parsed = ParseAllreduceAlgorithm(Name(algorithm));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed.value(), algorithm);
    EXPECT_NE(AllreduceNames().find(algorithm->name), std::string_view::npos);
  }
  EXPECT_EQ(ParseAllreduceAlgorithm("auto").value(), nullptr);
  const auto unknown = ParseAllreduceAlgorithm("rign");
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("\"rign\""), std::string::npos);
  EXPECT_NE(unknown.status().message().find("halving_doubling"),
            std::string::npos);
}

TEST(RunnableAlgorithm, StandsInWhereMemoryOrRanksRuleAnAlgorithmOut) {
  using namespace allreduce;
  for (Algorithm algorithm : kTable) {
    EXPECT_EQ(RunnableAlgorithm(algorithm, 8, true, true), algorithm);
    const Algorithm anywhere = RunnableAlgorithm(algorithm, 100'000, false);
    EXPECT_LE(anywhere->memory, CollectiveAlgorithm::Memory::kMayShare);
    EXPECT_GE(anywhere->max_ranks, 100'000);
  }
  EXPECT_EQ(RunnableAlgorithm(&kShared, 8, false), &kTwoSync);
  EXPECT_EQ(RunnableAlgorithm(&kShared, kMaxReduceParties, true), &kShared);
  EXPECT_EQ(RunnableAlgorithm(&kShared, kMaxReduceParties + 1, true),
            &kTwoSync);
  EXPECT_EQ(RunnableAlgorithm(&kOneRound, kMaxReduceParties + 1, true),
            &kTwoSync);
}

}  // namespace
}  // namespace gradientflow
