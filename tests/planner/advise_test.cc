// What to rent.
#include "gradientflow/planner/advise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "tests/planner/some_facts.h"

namespace gradientflow::planner {
namespace {

// So few bytes that the exchange is hidden.
Profile FewBytes() {
  Profile profile = ManyTensors();
  for (ProfiledTensor& tensor : profile.tensors) tensor.elements /= 100;
  return profile;
}

AdviseOptions TenHours() {
  AdviseOptions options;
  // One host does 200 samples in a second: 7.2 million in ten hours.
  options.samples = 7.2e6;
  options.most_hosts = 40;
  return options;
}

TEST(Advise, ChoosesTheCheapestPlanThatKeepsTheDeadline) {
  AdviseOptions options = TenHours();
  options.deadline_seconds = 3.5 * 3600;
  const auto advice = Advise(FewBytes(), TwoHosts(), Price(), options);
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  ASSERT_TRUE(advice.value().chosen);
  const TrainingPlan& chosen = *advice.value().chosen;
  // One host needs ten hours and 20 EUR; three need a third of that and a bit.
  EXPECT_NEAR(advice.value().cheapest.cost, 20, 1e-9);
  EXPECT_EQ(advice.value().cheapest.prediction.hosts, 1);
  EXPECT_EQ(chosen.prediction.hosts, 3);
  EXPECT_LE(chosen.seconds, 3.5 * 3600);
  EXPECT_GT(chosen.cost, 20);
  EXPECT_LT(chosen.cost, 21.5);
  EXPECT_LE(advice.value().fastest.seconds, chosen.seconds);
  // All of the 40 hosts pay, or almost.
  EXPECT_GE(advice.value().last_paying_hosts, 30);
  EXPECT_EQ(advice.value().savings.size(), 3U);
  // Compute is nearly all of the step; when it is 20 % slower, three hosts need
  // four hours.
  ASSERT_EQ(advice.value().sensitivities.size(), 6U);
  EXPECT_EQ(advice.value().sensitivities.front().what, "compute");
  EXPECT_NEAR(advice.value().sensitivities.front().seconds_factor, 1.2, 0.02);
  EXPECT_EQ(advice.value().sensitivities.front().best_hosts, 4);
}

TEST(Advise, HangsOnTheBandwidthWhereBytesAreNotHidden) {
  AdviseOptions options = TenHours();
  options.deadline_seconds = 5 * 3600;
  const auto advice = Advise(ManyTensors(), TwoHosts(), Price(), options);
  ASSERT_TRUE(advice.ok());
  EXPECT_EQ(advice.value().sensitivities.front().what, "bandwidth");
  for (const Saving& saving : advice.value().savings) {
    EXPECT_GT(saving.seconds, 0) << saving.what;
  }
}

// The line that the user names is the bandwidth, and is worse by as much.
TEST(Advise, HangsOnTheLineThatIsGiven) {
  AdviseOptions options = TenHours();
  options.deadline_seconds = 5 * 3600;
  const auto probed = Advise(ManyTensors(), TwoHosts(), Price(), options);
  // A busy host gets as much of this line as was probed.
  options.line_gbps = 1.2e9 * 8 / 1e9 / kPayloadShare;
  const auto given = Advise(ManyTensors(), TwoHosts(), Price(), options);
  ASSERT_TRUE(probed.ok() && given.ok());
  const Sensitivity& first = given.value().sensitivities.front();
  EXPECT_EQ(first.what, "bandwidth");
  EXPECT_GT(first.seconds_factor, 1.01);
  EXPECT_NEAR(first.seconds_factor,
              probed.value().sensitivities.front().seconds_factor, 1e-6);
}

TEST(Advise, HangsOnMemoryWhereCscPassesOverItSlowly) {
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  options.exchanges.front().csc = true;
  options.exchanges.front().sparsity = 0.9;
  Probe probe = TwoHosts();
  probe.memory_bytes_per_second = {1e7, 1e7};
  const auto advice = Advise(ManyTensors(), probe, Price(), options);
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  ASSERT_TRUE(advice.value().chosen);
  EXPECT_EQ(advice.value().sensitivities.front().what, "memory");
}

// Exchanges that differ by their bucket size only have the same name.
TEST(Advise, ComparesThePlanThatWasChosen) {
  AdviseOptions options = TenHours();
  options.deadline_seconds = 9 * 3600;
  options.exchanges = {{}, {}};
  options.exchanges[0].theta_bytes = std::size_t{1} << 20;
  options.exchanges[1].overlap = true;
  options.exchanges[1].theta_bytes = std::size_t{1} << 40;
  const auto both = Advise(ManyTensors(), TwoHosts(), Price(), options);
  ASSERT_TRUE(both.ok());
  ASSERT_TRUE(both.value().chosen);
  EXPECT_EQ(both.value().chosen->exchange, 0U);
  options.exchanges.pop_back();
  const auto one = Advise(ManyTensors(), TwoHosts(), Price(), options);
  for (std::size_t i = 0; i < one.value().sensitivities.size(); ++i) {
    EXPECT_EQ(both.value().sensitivities[i].seconds_factor,
              one.value().sensitivities[i].seconds_factor);
  }
}

// With a tenth of the bandwidth the exchange takes far longer than the step of
// one host, so that two hosts do not do half as much again as one.
TEST(Advise, SaysWhereHostsStopPaying) {
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  options.line_gbps = 1;
  const auto advice = Advise(ManyTensors(), TwoHosts(), Price(), options);
  ASSERT_TRUE(advice.ok());
  EXPECT_EQ(advice.value().last_paying_hosts, 1);
  EXPECT_EQ(advice.value().most_hosts, 40);
}

TEST(Advise, CountsNodesAndBytes) {
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  options.most_hosts = 2;
  NodePrice price = Price();
  const auto without = Advise(ManyTensors(), TwoHosts(), price, options);
  price.price_per_gb_out = 0.01;
  const auto with = Advise(ManyTensors(), TwoHosts(), price, options);
  const TrainingPlan& plan = with.value().fastest;
  EXPECT_EQ(plan.prediction.hosts, 2);
  EXPECT_NEAR(without.value().fastest.cost, plan.seconds / 3600 * 2 * 2, 1e-9);
  // 7.2 million samples in steps of 64. Twice the pool leaves the two hosts in
  // each.
  const double bytes = 2 * 4.0 * (21 * 1000000 + 132 * 2000);
  EXPECT_NEAR(plan.cost - without.value().fastest.cost,
              7.2e6 / 64 * bytes / 1e9 * 0.01, 1e-6);
}

TEST(Advise, RentsListedHostsInTheirOrder) {
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  options.hosts = {{1, 0}, {2, 0}, {4, 0}};
  const auto advice = Advise(FewBytes(), TwoHosts(), Price(), options);
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  EXPECT_EQ(advice.value().most_hosts, 3);
  EXPECT_EQ(advice.value().chosen->prediction.hosts, 3);
  EXPECT_EQ(advice.value().chosen->prediction.ranks, 7);
  EXPECT_EQ(advice.value().cheapest.prediction.ranks, 7);
}

// A host that is interrupted every ten hours or so, which has a checkpoint of
// 10 s after each quarter of an hour and needs three minutes to go on.
TEST(Advise, CountsWhatInterruptionsCost) {
  const SpotTerms spot{0.1, 900, 10, 180};
  // To the second order in the rate: half of an interval is lost, or a bit
  // more.
  const double rate = 0.1 / 3600;
  EXPECT_NEAR(SpotFactor(spot, 1), 910.0 / 900 * (1 + rate * (910.0 / 2 + 180)),
              1e-3);
  // Four hosts are interrupted four times as often.
  EXPECT_NEAR(SpotFactor(spot, 4),
              910.0 / 900 * (1 + 4 * rate * (910.0 / 2 + 180)), 4e-3);
  EXPECT_EQ(SpotFactor({0, 900, 0, 180}, 1000), 1);
  EXPECT_TRUE(std::isinf(SpotFactor({1000, 3600, 0, 0}, 1000)));
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  options.most_hosts = 1;
  NodePrice price = Price();
  price.spot = spot;
  const auto advice = Advise(FewBytes(), TwoHosts(), price, options);
  ASSERT_TRUE(advice.ok());
  const TrainingPlan& plan = advice.value().fastest;
  EXPECT_NEAR(plan.seconds, 36000 * SpotFactor(spot, 1), 1e-6);
  EXPECT_NEAR(plan.lost_seconds, plan.seconds - 36000, 1e-6);
  EXPECT_NEAR(plan.cost, 20 * SpotFactor(spot, 1), 1e-9);
  // Nobody ends where hardly an interval passes.
  price.spot->interruptions_per_node_hour = 1e6;
  EXPECT_FALSE(Advise(FewBytes(), TwoHosts(), price, options).value().chosen);
}

// What many hosts save is lost to interruptions, which are as many times more.
TEST(Advise, RentsFewerHostsThatMayBeTakenAway) {
  AdviseOptions options = TenHours();
  options.budget = 1e9;
  NodePrice price = Price();
  EXPECT_EQ(Advise(FewBytes(), TwoHosts(), price, options)
                .value()
                .chosen->prediction.hosts,
            40);
  price.spot = SpotTerms{2, 900, 10, 180};
  const auto advice = Advise(FewBytes(), TwoHosts(), price, options);
  EXPECT_LT(advice.value().chosen->prediction.hosts, 10);
  EXPECT_GT(advice.value().chosen->prediction.hosts, 1);
}

TEST(Advise, ChoosesTheFastestPlanWithinTheBudget) {
  AdviseOptions options = TenHours();
  options.budget = 20.01;
  const auto little = Advise(FewBytes(), TwoHosts(), Price(), options);
  ASSERT_TRUE(little.ok());
  EXPECT_EQ(little.value().chosen->prediction.hosts, 1);
  options.budget = 22;
  const auto more = Advise(FewBytes(), TwoHosts(), Price(), options);
  EXPECT_GT(more.value().chosen->prediction.hosts, 1);
  EXPECT_LE(more.value().chosen->cost, 22);
  options.budget = 1;
  EXPECT_FALSE(
      Advise(ManyTensors(), TwoHosts(), Price(), options).value().chosen);
}

TEST(Advise, SaysWhatIsMissing) {
  AdviseOptions options = TenHours();
  EXPECT_EQ(
      Advise(ManyTensors(), TwoHosts(), Price(), options).status().message(),
      "expected a deadline or a budget");
  options.budget = 5;
  Profile unknown = ManyTensors();
  unknown.batch_samples = 0;
  EXPECT_EQ(Advise(unknown, TwoHosts(), Price(), options).status().message(),
            "profile: batch_samples: expected at least 1 for an advice; make "
            "the profile with GRADIENTFLOW_PROFILE_BATCH, the samples that a "
            "rank takes in a step");
}

}  // namespace
}  // namespace gradientflow::planner
