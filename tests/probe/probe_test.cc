#include "gradientflow/probe/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/planner/probe.h"
#include "gradientflow/probe/host_pairs.h"
#include "gradientflow/probe/load.h"
#include "gradientflow/probe/memory.h"
#include "gradientflow/probe/pair.h"
#include "gradientflow/probe/pair_rank.h"
#include "gradientflow/probe/report.h"
#include "tests/communicator/ranks.h"

// Measurements on clocks that run: what must be there, and what cannot be
// otherwise. benchmarks/planner/probe.py compares numbers.
namespace gradientflow::testing {
namespace {

constexpr double kShort = 0.01;

TEST(RateOf, IsThatOfTheTrainsTogetherAndOfTheMiddleOne) {
  const FlowRate rate = RateOf(std::vector<double>{1, 4, 2, 1}, 6);
  EXPECT_NEAR(rate.mean, 3, 1e-12);
  EXPECT_NEAR(rate.p50, 4, 1e-12);
  EXPECT_NEAR(rate.p99, 6 / 3.94, 1e-12);
  EXPECT_NEAR(RateOf(std::vector<double>{0.5}, 6).p99, 12, 1e-12);
}

// A clock that is ahead by 1 ms more with each look: all times are multiples.
class CountingClock final : public Clock {
 public:
  Time Now() const override { return FromSeconds(1e-3 * ++looks_); }

 private:
  mutable int looks_ = 0;
};

TEST(Trains, HaveSeveralMessagesEachHoweverSlow) {
  for (const double seconds : {0.001, 0.1, 0.5, 4.0, 60.0}) {
    for (const double each : {1e-9, 1e-4, 0.01, 0.34, 20.0}) {
      const Trains trains = TrainsOf(seconds, 0.2, each);
      EXPECT_GE(trains.count, 3U) << seconds << " " << each;
      EXPECT_GE(trains.messages, 4U) << seconds << " " << each;
    }
  }
  // Twenty trains of 0.2 s, if messages are quick; if there are twelve of them
  // at all, three.
  EXPECT_EQ(TrainsOf(4, 0.2, 1e-3).count, 20U);
  EXPECT_EQ(TrainsOf(4, 0.2, 1e-3).messages, 200U);
  EXPECT_EQ(TrainsOf(4, 0.2, 0.34).count, 3U);
}

TEST(Pair, TakesTimesFromItsClock) {
  CommJob job;
  job.size = 2;
  RunRanks(job, [](Communicator& comm) {
    const CountingClock clock;
    const Pass pass = [] {};
    if (comm.rank() == 1) {
      EXPECT_TRUE(FollowPair(comm, 0, clock, pass).ok());
      return;
    }
    PairLeader leader(comm, 1, clock, pass);
    // One look before the message, and one after the answer.
    const auto latency = leader.Latency(kShort);
    ASSERT_TRUE(latency.ok()) << latency.status().message();
    EXPECT_NEAR(latency.value().p50, 0.5e-3, 1e-9);
    EXPECT_NEAR(latency.value().p99, 0.5e-3, 1e-9);
    // One look for each message that arrives.
    for (const Direction direction :
         {Direction::kFromLeader, Direction::kToLeader, Direction::kBoth}) {
      const auto rate = leader.Rate(
          {.message_bytes = 4096, .direction = direction, .seconds = kShort});
      ASSERT_TRUE(rate.ok()) << rate.status().message();
      EXPECT_NEAR(rate.value().mean, 4096e3, 1);
      EXPECT_NEAR(rate.value().p50, 4096e3, 1);
      EXPECT_NEAR(rate.value().p99, 4096e3, 1);
    }
    // In a train of four messages there is one look for each, and two for each
    // pass between them, of which the second one shows that it took 1 ms.
    const auto driver = leader.DriverSecondsPerByte(4096, kShort);
    ASSERT_TRUE(driver.ok()) << driver.status().message();
    EXPECT_NEAR(driver.value(), (4e-3 + 3 * 2e-3 - 3 * 1e-3) / 4 / 4096, 1e-12);
    // Whole rounds, each of which takes a look or more.
    const auto messages = leader.Messages(kShort);
    ASSERT_TRUE(messages.ok()) << messages.status().message();
    EXPECT_GT(messages.value(), 0U);
    EXPECT_EQ(messages.value() % PairLeader::kLeastMessages, 0U);
    EXPECT_TRUE(leader.End().ok());
  });
}

// In the half second beside 100 messages the threads did 400 products instead
// of 500: they lost a tenth of a second.
TEST(ComputeLoad, LosesTimeToMessages) {
  const LoadWindow alone = {.seconds = 1, .products = 1000};
  EXPECT_NEAR(LongerPerMessage(
                  alone, {.seconds = 0.5, .products = 400, .messages = 100}),
              1e-3, 1e-12);
  EXPECT_NEAR(LongerPerMessage(
                  alone, {.seconds = 0.5, .products = 500, .messages = 100}),
              0, 1e-12);
}

TEST(Pair, EndsWithTheReasonIfItsPeerIsGone) {
  CommJob job;
  job.size = 2;
  RunRanks(job, [](Communicator& comm) {
    const SteadyClock clock;
    if (comm.rank() == 1) {
      comm.Abort(Status(StatusCode::kAborted, "had enough"));
      return;
    }
    const auto latency = PairLeader(comm, 1, clock).Latency(kShort);
    ASSERT_FALSE(latency.ok());
    EXPECT_NE(latency.status().message().find("had enough"), std::string::npos)
        << latency.status().message();
  });
}

TEST(ComputeLoad, WorksUntilItEnds) {
  const ComputeLoad load(2);
  const SteadyClock clock;
  const Clock::Time end = clock.Now() + FromSeconds(20);
  while (load.products() < 10 && clock.Now() < end) {
  }
  EXPECT_GE(load.products(), 10U);
}

TEST(Memory, HasRatesOfWhichMostAreAsFastAsTheSlowest) {
  const SteadyClock clock;
  Workers workers(2, std::chrono::nanoseconds(0));
  ResidualPass residual(4 << 20, workers);
  for (const MemoryRates& rates :
       {MeasureAlone(ReduceWork(1 << 16), kShort, clock),
        MeasureAlone(residual.Work(), kShort, clock)}) {
    EXPECT_GT(rates.p99, 0);
    EXPECT_GE(rates.p50, rates.p99);
  }
}

// Two passes are 1 ms by the clock on most ranks, and 3 ms on the last one.
TEST(Memory, IsAsFastAsTheSlowestOfTheRanksTogether) {
  CommJob job;
  job.size = 3;
  RunRanks(job, [](Communicator& comm) {
    const CountingClock clock;
    const MemoryWork work{1000, [&] {
                            if (comm.rank() == 2) clock.Now();
                          }};
    const auto rates = MeasureTogether(comm, work, 20 * 2.5e-3, clock);
    ASSERT_TRUE(rates.ok()) << rates.status().message();
    EXPECT_NEAR(rates.value().p50, 2000 / 3e-3, 1e-3);
    EXPECT_NEAR(rates.value().p99, 2000 / 3e-3, 1e-3);
  });
}

TEST(Memory, IsEnoughForAPassOfManyThreads) {
  Workers workers(1, std::chrono::nanoseconds(0));
  ResidualPass residual(1, workers);
  EXPECT_GT(residual.elements(), 0U);
  residual.Make();
  residual.Make();
}

using Pairs = HostPairs::Pairs;

TEST(HostPairs, AreNeighboursInsideAndHalvesAcross) {
  // Hosts 7, 3, 9, 4 and 5, which have three, two, one, two and one ranks.
  const HostPairs hosts({7, 3, 7, 9, 3, 7, 4, 4, 5});
  EXPECT_EQ(hosts.hosts(), 5);
  EXPECT_EQ(hosts.most(), 3);
  EXPECT_EQ(hosts.HostOf(4), 1);
  EXPECT_EQ(hosts.Inside(), (Pairs{{0, 2, 0}, {1, 4, 1}, {6, 7, 3}}));
  EXPECT_EQ(hosts.Across(), (Pairs{{0, 3, 0}, {1, 6, 1}, {4, 7, 1}}));
  EXPECT_EQ(HostPairs({1, 1}).Across(), Pairs());
}

ProbeResult ResultOf(const CommJob& job, int load_threads) {
  std::mutex mutex;
  ProbeResult of_rank_0;
  RunRanks(job, [&](Communicator& comm) {
    const SteadyClock clock;
    ProbeOptions options;
    options.seconds = kShort;
    options.load_threads = load_threads;
    const auto result = Probe(comm, options, {}, clock);
    ASSERT_TRUE(result.ok()) << result.status().message();
    if (comm.rank() != 0) return;
    const std::lock_guard lock(mutex);
    of_rank_0 = result.value();
  });
  return of_rank_0;
}

void ExpectMeasured(const planner::PairLevels& levels) {
  EXPECT_GT(levels.latency_seconds.p50, 0);
  EXPECT_GE(levels.latency_seconds.p99, levels.latency_seconds.p50);
  EXPECT_GT(levels.reduce_bytes_per_second.p50, 0);
  for (const planner::Bandwidth& entry : levels.bandwidth) {
    EXPECT_GT(entry.bytes_per_second.p50, 0);
    EXPECT_GE(entry.bytes_per_second.p50, entry.bytes_per_second.p99);
  }
}

TEST(Probe, OfOneHostHasThatClassOnly) {
  CommJob job;
  job.size = 2;
  const planner::Probe file = FileOf(ResultOf(job, 1));
  EXPECT_EQ(file.hosts, 1U);
  EXPECT_EQ(file.ranks_per_host, 2U);
  ASSERT_EQ(file.pairs.size(), 1U);
  EXPECT_EQ(file.pairs[0].pair_class, planner::PairClass::kSameHost);
  EXPECT_EQ(file.pairs[0].transport, "shm");
  ExpectMeasured(file.pairs[0].idle);
  ASSERT_TRUE(file.pairs[0].loaded.has_value());
  ExpectMeasured(*file.pairs[0].loaded);
}

TEST(Probe, MeasuresAtRestOnlyIfAskedTo) {
  CommJob job;
  job.size = 2;
  const planner::Probe file = FileOf(ResultOf(job, -1));
  ASSERT_EQ(file.pairs.size(), 1U);
  ExpectMeasured(file.pairs[0].idle);
  EXPECT_FALSE(file.pairs[0].loaded.has_value());
  EXPECT_TRUE(file.pairs[0].idle.driver_seconds_per_byte.has_value());
  ASSERT_TRUE(file.pass_seconds.has_value());
  EXPECT_GT(file.pass_seconds->p50, 0);
}

// Two ranks per host: ranks 0 and 1, 2 and 3.
TEST(Probe, OfTwoHostsHasBothClassesAndTheSharedLine) {
  CommJob job;
  job.size = 4;
  job.over = Over::kMixed;
  const planner::Probe file = FileOf(ResultOf(job, 1));
  EXPECT_EQ(file.hosts, 2U);
  EXPECT_EQ(file.ranks_per_host, 2U);
  ASSERT_EQ(file.pairs.size(), 2U);
  const planner::ProbedPair* const across =
      FindPair(file, planner::PairClass::kOtherHost);
  ASSERT_NE(across, nullptr);
  EXPECT_EQ(across->transport, "tcp");
  ExpectMeasured(across->idle);
  ASSERT_TRUE(across->loaded.has_value());
  ExpectMeasured(*across->loaded);
  for (const planner::PairLevels& levels : {across->idle, *across->loaded}) {
    int shared = 0;
    for (const planner::Bandwidth& entry : levels.bandwidth) {
      if (entry.ranks == 2) ++shared;
    }
    EXPECT_EQ(shared, 2);
  }
  // The planner reads what it is given.
  const auto read = planner::ParseProbe(planner::ProbeText(file));
  EXPECT_TRUE(read.ok()) << read.status().message();
}

// Hosts 0 and 1 exchange with 2 and 3: first two hosts, then all.
TEST(Probe, OfFourHostsHasWhatAllGetAtOnce) {
  CommJob job;
  job.size = 4;
  job.over = Over::kTcp;
  job.differ = [](int rank, Options* options) {
    options->host_id = "host" + std::to_string(rank);
  };
  const ProbeResult result = ResultOf(job, -1);
  EXPECT_EQ(result.across.leader, 0);
  EXPECT_EQ(result.across.follower, 2);
  ASSERT_EQ(result.lines.size(), 1U);
  EXPECT_EQ(result.lines[0].ranks, 1);
  const planner::Probe file = FileOf(result);
  EXPECT_EQ(file.hosts, 4U);
  ASSERT_EQ(file.pairs.size(), 1U);
  ExpectMeasured(file.pairs[0].idle);
  int all = 0;
  for (const planner::Bandwidth& entry : file.pairs[0].idle.bandwidth) {
    if (entry.hosts != 4) continue;
    ++all;
    // In what the planner reads is the length that was the fastest.
    EXPECT_EQ(entry.message_bytes,
              entry.direction == planner::Direction::kOneWay
                  ? result.lines[0].one_way_bytes
                  : result.lines[0].both_ways_bytes);
  }
  EXPECT_EQ(all, 2);
}

TEST(PairRank, IsZeroForTheFirstThatComesToAnAddressOfThisHost) {
  const auto first = FindPairRank("127.0.0.1:38123");
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first.value().rank, 0);
  const auto second = FindPairRank("127.0.0.1:38123");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second.value().rank, 1);
  // An address for documentation, so no host has it.
  const auto elsewhere = FindPairRank("192.0.2.1:38124");
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_EQ(elsewhere.value().rank, 1);
  const auto nowhere = FindPairRank("no host:x");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.status().message().find("--pair"), std::string::npos);
}

}  // namespace
}  // namespace gradientflow::testing
