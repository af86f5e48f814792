// Predictions and checks from files.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gradientflow/planner/check.h"
#include "gradientflow/planner/predict.h"
#include "gradientflow/planner/reports.h"
#include "tests/planner/some_facts.h"

namespace gradientflow::planner {
namespace {

TEST(Predict, SplitsTheStepAndMarksWhatIsExtrapolated) {
  PredictOptions options;
  options.ranks = {1, 2, 4};
  Exchange csc;
  csc.wire_element_bytes = 2;
  csc.csc = true;
  options.exchanges = {{}, csc};
  const auto predicted = Predict(ManyTensors(), TwoHosts(), options);
  ASSERT_TRUE(predicted.ok()) << predicted.status().message();
  ASSERT_EQ(predicted.value().size(), 6U);
  for (const Prediction& p : predicted.value()) {
    const StepTerms& t = p.step.terms;
    EXPECT_NEAR(t.step,
                t.compute + t.slowest + t.host + t.latency + t.bytes + t.csc,
                1e-12);
    EXPECT_LT(p.low_seconds, t.step);
    EXPECT_GT(p.high_seconds, t.step);
    EXPECT_EQ(p.extrapolated.ranks, p.ranks > 2);
    EXPECT_FALSE(p.extrapolated.load);
    EXPECT_NEAR(p.samples_per_second, p.ranks * 32 / t.step, 1e-9);
  }
  EXPECT_NEAR(predicted.value()[0].step.terms.step, 0.16, 1e-12);
  // CSC sends 15 % in half the bytes.
  EXPECT_LT(predicted.value()[5].bytes_out,
            0.1 * predicted.value()[4].bytes_out);
}

TEST(Predict, TakesLevelsUnderLoadAndTheSlowestLine) {
  const auto cluster = ClusterFromProbe(TwoHosts(), {});
  ASSERT_TRUE(cluster.ok());
  EXPECT_EQ(cluster.value().cluster.costs.across.latency_seconds, 3e-5);
  EXPECT_EQ(cluster.value().cluster.costs.across.seconds_per_byte, 1e-9);
  EXPECT_EQ(cluster.value().cluster.across_backward_seconds_per_message, 1e-5);
  EXPECT_EQ(cluster.value().cluster.driver_seconds_per_byte, 1e-10);
  EXPECT_EQ(cluster.value().cluster.pass_seconds, 1e-4);
  // Within one host, that of its own pairs counts.
  Probe both = TwoHosts();
  both.pairs.push_back(both.pairs.front());
  both.pairs.back().pair_class = PairClass::kSameHost;
  both.pairs.back().idle.driver_seconds_per_byte = Level{2e-10, 2e-10};
  ClusterOptions one_host;
  one_host.ranks_per_host = 2;
  const auto together = ClusterFromProbe(both, one_host);
  EXPECT_EQ(together.value().cluster.driver_seconds_per_byte, 2e-10);
  EXPECT_EQ(cluster.value().cluster.inside_backward_seconds_per_message, 0);
  ClusterOptions slow;
  slow.line_gbps = 1;
  const auto line = ClusterFromProbe(TwoHosts(), slow);
  // Under load it gives as large a part of that as the probed line did.
  EXPECT_NEAR(1 / line.value().cluster.costs.across.seconds_per_byte,
              125e6 * 1448 / 1538 / 1.2, 1);
  EXPECT_FALSE(line.value().extrapolated.line);
  slow.line_gbps = 100;
  EXPECT_TRUE(ClusterFromProbe(TwoHosts(), slow).value().extrapolated.line);
  // The payload of 10.5 Gb/s is 3 % above what was probed at rest: the same
  // line.
  slow.line_gbps = 10.5;
  const auto same = ClusterFromProbe(TwoHosts(), slow);
  EXPECT_FALSE(same.value().extrapolated.line);
  EXPECT_NEAR(same.value().cluster.costs.across.seconds_per_byte, 1e-9, 1e-15);
  Probe none = TwoHosts();
  none.pairs[0].pair_class = PairClass::kSameHost;
  EXPECT_EQ(ClusterFromProbe(none, {}).status().message(),
            "probe: pairs: 2 hosts need a pair of class other_host");
}

double AcrossRate(const Result<PlannedCluster>& planned) {
  return 1 / planned.value().cluster.costs.across.seconds_per_byte;
}

// Jobs of up to eight ranks have two connections between two ranks.
TEST(Predict, TakesTheBandwidthOfAsManyConnections) {
  Probe probe = TwoHosts();
  ProbedPair& pair = probe.pairs[0];
  const auto add = [](PairLevels* levels, std::size_t streams, double rate) {
    levels->bandwidth.push_back(
        {1 << 21, Direction::kBothWays, streams, 1, {rate, rate}});
  };
  add(&pair.idle, 2, 2e9);
  add(&pair.idle, 4, 3e9);
  pair.loaded->bandwidth.clear();
  add(&*pair.loaded, 2, 1.8e9);
  ClusterOptions options;
  options.ranks = 8;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 1.8e9, 1);
  // One connection was measured at rest only.
  options.ranks = 9;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 1.2e9 * 0.9, 1);
  pair.transport = "rdma";
  options.ranks = 2;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 1.2e9 * 0.9, 1);
}

// Hosts that get less if several of them exchange at once. Eight get 4 GB/s in
// all, so seven do, too.
TEST(Predict, TakesTheBandwidthOfAsManyHosts) {
  Probe probe = TwoHosts();
  probe.hosts = 8;
  ProbedPair& pair = probe.pairs[0];
  pair.loaded.reset();
  for (const std::size_t hosts : {4, 8}) {
    const double rate = 4e9 / static_cast<double>(hosts);
    pair.idle.bandwidth.push_back(
        {1 << 21, Direction::kBothWays, 1, 1, {rate, rate}, hosts});
  }
  ClusterOptions options;
  const std::pair<int, double> wanted[] = {{2, 1.2e9}, {3, 1.2e9},
                                           {4, 1e9},   {7, 4e9 / 7.0},
                                           {8, 0.5e9}, {16, 0.5e9}};
  for (const auto& [ranks, rate] : wanted) {
    options.ranks = ranks;
    EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), rate, 1) << ranks;
  }
  // Only two hosts were measured under load, where they got 1 of 1.2 GB/s.
  pair.loaded = TwoHosts().pairs[0].loaded;
  options.ranks = 7;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 4e9 / 7 / 1.2, 1);
  pair.loaded.reset();
  // With two ranks on each host, only two hosts were measured.
  pair.idle.bandwidth.push_back(
      {1 << 21, Direction::kBothWays, 1, 2, {2e9, 2e9}});
  options.ranks = 16;
  options.ranks_per_host = 2;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 2e9, 1);
}

// One rank does not fill the line, which two did.
TEST(Predict, KnowsWhatOneRankAloneGetsOfTheLine) {
  Probe probe = TwoHosts();
  probe.ranks_per_host = 2;
  ProbedPair& pair = probe.pairs[0];
  pair.idle.bandwidth.push_back(
      {1 << 21, Direction::kBothWays, 1, 2, {2e9, 2e9}});
  ClusterOptions options;
  options.ranks = 4;
  options.ranks_per_host = 2;
  auto planned = ClusterFromProbe(probe, options);
  // Under load a rank got 1 of 1.2 GB/s, and so do two.
  EXPECT_NEAR(AcrossRate(planned), 2e9 / 1.2, 1);
  ASSERT_TRUE(planned.value().cluster.alone.has_value());
  EXPECT_NEAR(1 / planned.value().cluster.alone->across.seconds_per_byte, 1e9,
              1);
  EXPECT_FALSE(planned.value().extrapolated.ranks_per_host);
  pair.loaded->bandwidth.push_back(
      {1 << 21, Direction::kBothWays, 1, 2, {1.9e9, 1.9e9}});
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(probe, options)), 1.9e9, 1);
  // A faster line does not make a rank faster that did not fill the slow one.
  options.line_gbps = 100;
  planned = ClusterFromProbe(probe, options);
  EXPECT_NEAR(1 / planned.value().cluster.alone->across.seconds_per_byte, 1e9,
              1);
  EXPECT_NEAR(AcrossRate(planned), 0.95 * 12.5e9 * kPayloadShare, 1e3);
  // Four ranks on a host were not probed.
  options.ranks_per_host = 4;
  options.ranks = 8;
  options.line_gbps = 0;
  planned = ClusterFromProbe(probe, options);
  EXPECT_TRUE(planned.value().extrapolated.ranks_per_host);
  EXPECT_NEAR(AcrossRate(planned), 1.9e9, 1);
}

// Hosts of which one has fewer ranks, and another a slower line.
TEST(Predict, TakesTheSlowestLineAndTheFullestHost) {
  ClusterOptions options;
  options.hosts = {{2, 0}, {4, 1}, {3, 100}};
  options.ranks = 8;
  const auto planned = ClusterFromProbe(TwoHosts(), options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned.value().cluster.host_ranks, (std::vector<int>{2, 4, 2}));
  EXPECT_NEAR(AcrossRate(planned), 125e6 * kPayloadShare / 1.2, 1);
  EXPECT_FALSE(planned.value().extrapolated.line);
  EXPECT_TRUE(planned.value().extrapolated.ranks_per_host);
  // The slow one is not among the first two ranks' hosts.
  options.ranks = 2;
  EXPECT_NEAR(AcrossRate(ClusterFromProbe(TwoHosts(), options)), 1e9, 1);
  options.ranks = 10;
  EXPECT_EQ(ClusterFromProbe(TwoHosts(), options).status().message(),
            "ranks: expected at most the 9 that the hosts have, seen 10");
}

// Equal hosts are the same however they are described; one slow line among them
// is as slow as all of them.
TEST(Predict, TakesListedHostsAsEqualOnes) {
  PredictOptions equal;
  equal.ranks = {64, 128};
  equal.ranks_per_host = 4;
  equal.line_gbps = 2;
  PredictOptions listed;
  listed.ranks = {64, 128};
  listed.hosts.assign(32, {4, 0});
  listed.hosts.front().line_gbps = 2;
  const auto one = Predict(ManyTensors(), TwoHosts(), equal);
  const auto other = Predict(ManyTensors(), TwoHosts(), listed);
  ASSERT_TRUE(one.ok() && other.ok());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(one.value()[i].step.terms.step, other.value()[i].step.terms.step);
    EXPECT_EQ(one.value()[i].hosts, other.value()[i].hosts);
  }
}

// Two ranks of one host have the host's work of same_host, one has none.
TEST(Predict, TakesTheHostsWorkOfThePairThatTheRanksAre) {
  Probe probe = TwoHosts();
  ProbedPair inside = probe.pairs[0];
  inside.pair_class = PairClass::kSameHost;
  inside.loaded->backward_seconds_per_message = Level{4e-5, 5e-5};
  probe.pairs.push_back(inside);
  PredictOptions options;
  options.ranks = {1, 2};
  options.ranks_per_host = 2;
  options.exchanges.front().theta_bytes = 0;
  const auto one_host = Predict(ManyTensors(), probe, options);
  ASSERT_TRUE(one_host.ok());
  EXPECT_EQ(one_host.value()[0].step.terms.host, 0);
  EXPECT_EQ(one_host.value()[0].step.terms.step, 0.16);
  const double inside_work = one_host.value()[1].step.terms.host;
  EXPECT_GT(inside_work, 0);
  // The other pair's work has no part in that.
  probe.pairs[0].loaded->backward_seconds_per_message = Level{1, 1};
  EXPECT_EQ(Predict(ManyTensors(), probe, options).value()[1].step.terms.host,
            inside_work);
  probe.pairs[1].loaded->backward_seconds_per_message = Level{0, 0};
  EXPECT_EQ(Predict(ManyTensors(), probe, options).value()[1].step.terms.host,
            0);
}

TEST(Predict, RefusesWhatCannotBePredicted) {
  Profile empty = ManyTensors();
  for (ProfiledTensor& tensor : empty.tensors) tensor.elements = 0;
  EXPECT_EQ(Predict(empty, TwoHosts(), {}).status().message(),
            "profile: tensors: expected one with elements");
  PredictOptions options;
  options.ranks = {0};
  EXPECT_FALSE(Predict(ManyTensors(), TwoHosts(), options).ok());
}

// 2 to 4096 ranks with eight exchanges: a wide limit, since machines differ.
// The program takes a fraction of a second.
TEST(Predict, AnswersForThousandsOfRanks) {
  PredictOptions options;
  options.ranks.clear();
  for (int ranks = 2; ranks <= 4096; ranks *= 2) options.ranks.push_back(ranks);
  options.exchanges.clear();
  for (const bool csc : {false, true}) {
    for (const std::size_t wire : {std::size_t{2}, std::size_t{4}}) {
      for (const bool overlap : {false, true}) {
        Exchange exchange;
        exchange.wire_element_bytes = wire;
        exchange.csc = csc;
        exchange.overlap = overlap;
        options.exchanges.push_back(exchange);
      }
    }
  }
  const auto predicted = Predict(ManyTensors(), TwoHosts(), options);
  ASSERT_TRUE(predicted.ok());
  EXPECT_EQ(predicted.value().size(), 96U);
  for (const Prediction& p : predicted.value()) {
    EXPECT_TRUE(std::isfinite(p.step.terms.step));
    EXPECT_GE(p.step.terms.step, 0.16);
  }
}

// Beyond 64 ranks schedules are not played; one more host does not seem faster
// for that. (A host with fewer ranks may: there the library chooses a ring.)
TEST(Predict, GrowsWhereSchedulesAreNoLongerPlayed) {
  for (const int per_host : {1, 2, 4, 8}) {
    for (const double latency : {1e-6, 3e-5, 1e-3}) {
      Probe probe = TwoHosts();
      probe.pairs[0].loaded->latency_seconds = {latency, latency};
      PredictOptions options;
      options.ranks = {64, 64 + per_host};
      options.ranks_per_host = per_host;
      options.exchanges = {{}, {}, {}};
      options.exchanges[1].theta_bytes = 0;
      options.exchanges[2].theta_bytes = std::size_t{1} << 40;
      const auto predicted = Predict(ManyTensors(), probe, options);
      ASSERT_TRUE(predicted.ok());
      for (std::size_t i = 3; i < predicted.value().size(); ++i) {
        const Prediction& more = predicted.value()[i];
        EXPECT_GE(more.step.terms.step,
                  predicted.value()[i % 3].step.terms.step * (1 - 1e-9))
            << more.ranks << " ranks, " << per_host << " per host, " << latency
            << ", exchange " << i % 3;
      }
    }
  }
}

TEST(Check, ComparesRunsAndNamesTheWrongTerm) {
  PredictOptions options;
  options.ranks = {2};
  options.exchanges.front().theta_bytes = 0;
  const Prediction two =
      Predict(ManyTensors(), TwoHosts(), options).value().front();
  const double step = two.step.terms.step;
  // The measured run had 10 ms more of own work than was predicted.
  const std::string csv =
      "ranks,mode,wire,bucket_bytes,step_seconds,wait_seconds\n"
      "2,dense,float32,0," +
      std::to_string(step + 0.01) + "," +
      std::to_string(two.step.terms.latency + two.step.terms.bytes +
                     two.step.terms.slowest) +
      "\n" + "2,csc,float16,auto," + std::to_string(2 * step) + ",0\n";
  const auto table = CsvTable::Parse(csv, "runs.csv");
  ASSERT_TRUE(table.ok());
  const auto runs = ReadRuns(table.value());
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  const auto report = CheckRuns(ManyTensors(), TwoHosts(), runs.value(), 0);
  ASSERT_TRUE(report.ok());
  const CheckedRun& first = report.value().runs.front();
  EXPECT_NEAR(first.error, step / (step + 0.01) - 1, 1e-4);
  EXPECT_EQ(first.wrong_term, "own work");
  EXPECT_NEAR(first.wrong_seconds, -0.01, 1e-5);
  // CSC was measured slower but predicted faster.
  EXPECT_EQ(report.value().ordered_fraction, 0);
  EXPECT_GT(report.value().worst_error, 0.4);
}

// A rank waits for the slowest one and for the exchange; of its own work,
// backward is looked at by itself if the run has it.
TEST(Check, TellsBackwardAndWaitApart) {
  PredictOptions options;
  options.ranks = {2};
  const StepTerms terms =
      Predict(ManyTensors(), TwoHosts(), options).value().front().step.terms;
  const double wait = terms.latency + terms.bytes + terms.csc + terms.slowest;
  const double backward = 0.1 + terms.host;
  const auto check = [&](double more_backward, double more_wait) {
    MeasuredRun run;
    run.ranks = 2;
    run.backward_seconds = backward + more_backward;
    run.wait_seconds = wait + more_wait;
    run.step_seconds = terms.step + more_backward + more_wait;
    return CheckRuns(ManyTensors(), TwoHosts(), {run}, 0).value().runs.front();
  };
  EXPECT_EQ(check(0.01, 0).wrong_term, "backward");
  EXPECT_NEAR(check(0.01, 0).wrong_seconds, -0.01, 1e-9);
  EXPECT_EQ(check(0, -0.002).wrong_term, "wait");
  EXPECT_NEAR(check(0, -0.002).wrong_seconds, 0.002, 1e-9);
}

TEST(Check, RefusesRowsThatItCannotRead) {
  const auto of = [](const std::string& row) {
    const auto table = CsvTable::Parse(
        "ranks,mode,wire,bucket_bytes,step_seconds\n" + row + "\n", "r.csv");
    if (!table.ok()) return table.status().message();
    return ReadRuns(table.value()).status().message();
  };
  EXPECT_EQ(of("2,dense,float32,auto,1"), "");
  EXPECT_EQ(of("0,dense,float32,auto,1"),
            "r.csv:2: ranks: expected a whole number of at least 1, seen 0");
  EXPECT_EQ(of("2,lazy,float32,auto,1"),
            "row 1: mode: expected dense or csc, seen lazy");
  EXPECT_EQ(of("2,dense,int8,auto,1"),
            "row 1: wire: expected float32, float16 or bfloat16, seen int8");
  EXPECT_EQ(of("2,dense,float32,big,1"),
            "r.csv:2: bucket_bytes: expected a number of at least 0, seen big");
  EXPECT_EQ(of("2,dense,float32,auto,-1"),
            "r.csv:2: step_seconds: expected a number of at least 0, seen -1");
  EXPECT_EQ(of("2,dense,float32,auto"), "r.csv:2: expected 5 fields, seen 4");
  EXPECT_EQ(of(""), "there are no runs");
}

TEST(Table, PrintsInThreeWays) {
  Table table({"name", "ranks"});
  table.Row().Text("a, b").Number(2);
  table.Row().Text("c").Number(0.125);
  EXPECT_EQ(table.Print(TableFormat::kText),
            "name  ranks\na, b      2\nc     0.125\n");
  EXPECT_EQ(table.Print(TableFormat::kCsv), "name,ranks\na; b,2\nc,0.125\n");
  EXPECT_EQ(table.Print(TableFormat::kJson),
            "[\n {\n  \"name\": \"a, b\",\n  \"ranks\": 2.0\n },\n {\n  "
            "\"name\": \"c\",\n  \"ranks\": 0.125\n }\n]\n");
}

}  // namespace
}  // namespace gradientflow::planner
