// The predicted costs of schedules, and which schedule is chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"
#include "tests/collectives/symbolic_executor.h"

namespace gradientflow {
namespace {

using Algorithm = const AllreduceAlgorithm*;

constexpr LinkModel kLink{30e-6, 1e-9, 2e-10, 0};

std::vector<Schedule> SchedulesOf(Algorithm algorithm, int size,
                                  const Topology& topology, std::size_t count,
                                  bool one_sided) {
  std::vector<Schedule> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(
        MakeAllreduce(*algorithm, r, {size, topology, one_sided}, count));
  }
  return ranks;
}

double Played(Algorithm algorithm, const AllreduceQuestion& question) {
  return PriceSchedules(
      SchedulesOf(algorithm, question.size, question.topology, question.count,
                  question.hosts_share_memory),
      question.topology, question.wire_element_bytes, question.model);
}

// As if all ranks were on one host over links like `link`, for which the
// predictions are the published formulas.
double Formula(const AllreduceAlgorithm& algorithm, int size, double bytes,
               const LinkModel& link) {
  AllreduceQuestion question;
  question.size = size;
  question.topology.host.assign(static_cast<std::size_t>(size), 0);
  question.count = static_cast<std::size_t>(bytes) / 4;
  question.model.inside = link;
  question.all_share_memory = true;
  return PredictAllreduce(algorithm, question);
}

TEST(CostModel, FormulasEqualThePlayedSchedulesOnEqualLinks) {
  // 720720 elements: all blocks are even.
  constexpr std::size_t kCount = 720720;
  const double bytes = 4.0 * kCount;
  const CostModel model{kLink, kLink};
  for (int size : {2, 3, 4, 5, 7, 8, 12, 16}) {
    for (Algorithm algorithm : allreduce::kTable) {
      const double formula = Formula(*algorithm, size, bytes, kLink);
      if (std::isinf(formula)) continue;  // Two levels.
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
  EXPECT_DOUBLE_EQ(Formula(kShared, 4, 4000, link), 2 + 8);
  EXPECT_DOUBLE_EQ(Formula(kHalvingDoubling, 5, 4000, link), 67 + 2 + 80 + 4);
  for (Algorithm algorithm : kTable) {
    if (algorithm == &kTwoLevel) continue;  // One rank has no two levels.
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

AllreduceQuestion Ask(int size, std::size_t count) {
  AllreduceQuestion question;
  question.size = size;
  question.count = count;
  question.model = TypicalCostModel();
  return question;
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
  auto question = Ask(4, 1 << 20);
  question.topology.host = {3, 3, 3, 3};
  EXPECT_NE(ChooseAllreduce(question).algorithm, &allreduce::kShared);
  question.all_share_memory = true;
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kShared);
  auto many = Ask(kMaxReduceParties + 1, 1 << 20);
  many.topology.host.assign(static_cast<std::size_t>(many.size), 0);
  many.all_share_memory = true;
  EXPECT_NE(ChooseAllreduce(many).algorithm, &allreduce::kShared);
}

TEST(ChooseAllreduce, TakesTwoLevelsWhereHostsHaveCompany) {
  auto question = Ask(16, 4 << 20);
  for (int r = 0; r < 16; ++r) question.topology.host.push_back(r / 4);
  question.hosts_share_memory = true;
  EXPECT_EQ(ChooseAllreduce(question).algorithm, &allreduce::kTwoLevel);
  for (int r = 0; r < 16; ++r) {
    question.topology.host[static_cast<std::size_t>(r)] = r;
  }
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
        auto question = Ask(static_cast<int>(host.size()), count);
        question.topology.host = host;
        question.hosts_share_memory = shared;
        question.all_share_memory =
            shared &&
            std::all_of(host.begin(), host.end(), [](int h) { return h == 0; });
        double best = std::numeric_limits<double>::infinity();
        Algorithm fastest = nullptr;
        for (Algorithm algorithm : allreduce::kTable) {
          if (std::isinf(PredictAllreduce(*algorithm, question))) continue;
          const double seconds = Played(algorithm, question);
          if (seconds < best) fastest = algorithm;
          best = std::min(best, seconds);
        }
        const auto choice = ChooseAllreduce(question);
        EXPECT_LE(Played(choice.algorithm, question), 1.3 * best)
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
  EXPECT_EQ(choice.seconds, PredictAllreduce(*choice.algorithm, question));
  EXPECT_EQ(ChooseAllreduce(question).reason, choice.reason);
}

TEST(ChooseAllreduce, AnswersForOneRankAndForNothing) {
  EXPECT_EQ(ChooseAllreduce(Ask(1, 1000)).seconds, 0);
  EXPECT_GE(ChooseAllreduce(Ask(4, 0)).seconds, 0);
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

TEST(RunnableAllreduce, StandsInWhereMemoryOrRanksRuleAnAlgorithmOut) {
  using namespace allreduce;
  for (Algorithm algorithm : kTable) {
    EXPECT_EQ(RunnableAllreduce(algorithm, 8, true), algorithm);
    const Algorithm anywhere = RunnableAllreduce(algorithm, 100'000, false);
    EXPECT_NE(anywhere->memory, AllreduceAlgorithm::Memory::kMustShare);
    EXPECT_GE(anywhere->max_ranks, 100'000);
  }
  EXPECT_EQ(RunnableAllreduce(&kShared, 8, false), &kTwoSync);
  EXPECT_EQ(RunnableAllreduce(&kShared, kMaxReduceParties, true), &kShared);
  EXPECT_EQ(RunnableAllreduce(&kShared, kMaxReduceParties + 1, true),
            &kTwoSync);
  EXPECT_EQ(RunnableAllreduce(&kOneRound, kMaxReduceParties + 1, true),
            &kTwoSync);
}

TEST(MakeAllreduce, MakesWhatEveryNameSays) {
  const Topology topology{{0, 0, 1, 1, 1}};
  for (Algorithm algorithm : allreduce::kTable) {
    for (bool one_sided : {false, true}) {
      std::vector<gradientflow::testing::SymbolicRank> ranks(5);
      for (std::size_t r = 0; r < 5; ++r) {
        ranks[r].schedule = MakeAllreduce(*algorithm, static_cast<int>(r),
                                          {5, topology, one_sided}, 33);
        ranks[r].data.resize(33);
        for (auto& cell : ranks[r].data) cell.value = 1 << r;
      }
      gradientflow::testing::SymbolicOptions options;
      if (algorithm == &allreduce::kTwoLevel) options.topology = topology;
      ASSERT_EQ(testing::Execute(&ranks, options), "") << Name(algorithm);
      for (const auto& rank : ranks) {
        for (const auto& cell : rank.data) EXPECT_EQ(cell.value, 31);
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow
