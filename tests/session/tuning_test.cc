#include "gradientflow/buckets/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/buckets/tuner.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/measure.h"
#include "tests/session/ranks.h"

namespace gradientflow {
namespace {

// Two hosts of two ranks, as rank 0 sees them. Between hosts a round of
// messages takes 50 us, a message 5 us and a byte 8 ns on a line that the ranks
// of a host share, 3 ns more in the later part of long messages; inside a host,
// 2 us, 0.5 us and 0.1 ns, and 0.2 ns more. An allreduce takes
// 90 us and 8 ns per byte. Other ranks are twice as slow.
class Network {
 public:
  CallGroup group() const {
    CallGroup group;
    group.size = 4;
    group.topology.host = {0, 0, 1, 1};
    return group;
  }
  Status Run(const CollectiveCall& call) {
    ++calls_;
    if (call.op == ReduceOp::kMax) {
      EXPECT_EQ(call.dtype, DType::kFloat64);
      auto* const times = static_cast<double*>(call.output);
      // The last of each five numbers is no time.
      for (std::size_t i = 0; i < call.count; ++i) {
        if (call.count == 2 || i % 5 != 4) times[i] *= 2;
      }
      return Status();
    }
    double seconds = 90e-6 + 4.0 * static_cast<double>(call.count) * 8e-9;
    if (call.kind == CollectiveKind::kAllToAll) seconds = Exchange(call);
    clock_.Advance(FromSeconds(seconds));
    return Status();
  }
  void Wait(double seconds) { clock_.Advance(FromSeconds(seconds)); }
  const Clock& clock() const { return clock_; }
  int calls() const { return calls_; }

 private:
  static double Exchange(const CollectiveCall& call) {
    double messages = 0;
    double bytes = 0;
    double late = 0;
    for (const std::size_t count : call.send_counts) {
      const auto size = static_cast<double>(count);
      messages += count > 0 ? 1 : 0;
      bytes += size;
      late += std::max(0.0, size - kShortMessageBytes);
    }
    EXPECT_EQ(call.send_counts[0], 0U);
    const bool inside = call.send_counts[1] > 0;
    EXPECT_TRUE(!inside || messages == 1);
    return inside ? 2e-6 + 0.5e-6 * messages + 0.1e-9 * bytes + 0.2e-9 * late
                  : 50e-6 + 5e-6 * messages + 2 * (8e-9 * bytes + 3e-9 * late);
  }

  int calls_ = 0;
  ManualClock clock_;
};

TEST(MeasureLinks, FindsWhatARoundAMessageAndAByteTakeByClassOfLink) {
  Network network;
  const auto costs = MeasureLinks(
      network.group(),
      [&](const CollectiveCall& call) { return network.Run(call); },
      network.clock());
  ASSERT_TRUE(costs.ok());
  const auto& [inside, across] = costs.value().together;
  EXPECT_NEAR(across.latency_seconds, 2 * 50e-6, 4e-7);
  EXPECT_NEAR(across.message_seconds, 2 * 5e-6, 4e-7);
  EXPECT_NEAR(across.seconds_per_byte, 2 * 8e-9, 1e-11);
  EXPECT_NEAR(across.long_seconds_per_byte, 2 * 3e-9, 1e-11);
  // With one peer inside, a message's part of the time is the typical one.
  EXPECT_NEAR(inside.latency_seconds + inside.message_seconds, 2 * 2.5e-6,
              1e-8);
  EXPECT_NEAR(inside.seconds_per_byte, 2 * 0.1e-9, 1e-12);
  EXPECT_NEAR(inside.long_seconds_per_byte, 2 * 0.2e-9, 1e-12);
}

// Eight ranks, of which each message down a tree and back up waits 30 us longer
// than one between two ranks takes; less where more ranks of the eight work.
TEST(MeasureLinks, FindsWhatWaitingRanksTakeFromThoseThatWork) {
  CallGroup group;
  group.size = 8;
  group.topology.host = {0, 1, 2, 3, 4, 5, 6, 7};
  ManualClock clock;
  double waiting = 30e-6;
  const auto run = [&](const CollectiveCall& call) {
    double seconds = 0;
    if (call.kind == CollectiveKind::kAllToAll) {
      seconds = 20e-6;
      for (const std::size_t bytes : call.send_counts) {
        if (bytes > 0) seconds += 5e-6 + 1e-9 * static_cast<double>(bytes);
      }
    } else if (call.kind != CollectiveKind::kAllreduce) {
      EXPECT_EQ(call.count, 1U);
      seconds = 3 * 25e-6 + (0.5 + 0.75 + 0.875) * waiting;
    }
    clock.Advance(FromSeconds(seconds));
    return Status();
  };
  const auto measured = [&] {
    const auto costs = MeasureLinks(group, run, clock);
    EXPECT_TRUE(costs.ok());
    EXPECT_EQ(costs.value().alone.across.waiting_seconds, 0);
    EXPECT_EQ(costs.value().together.inside.waiting_seconds,
              costs.value().together.across.waiting_seconds);
    return costs.value().together.across.waiting_seconds;
  };
  EXPECT_NEAR(measured(), 30e-6, 1e-6);
  // A tenth more than the price may be a disturbance, and less no gain.
  for (const double little : {-5e-6, 3e-6}) {
    waiting = little;
    EXPECT_EQ(measured(), 0) << little;
  }
  // Links that open when they are needed are not opened for this.
  waiting = 30e-6;
  group.few_links = true;
  EXPECT_EQ(measured(), 0);
}

// Rank 0 is alone on its host, so nobody exchanges messages with it there.
TEST(MeasureLinks, TakesTheNumbersOfAllWhereRankZeroHasNoCompany) {
  CallGroup group;
  group.rank = 1;
  group.size = 3;
  group.topology.host = {0, 1, 1};
  ManualClock clock;
  const auto run = [&](const CollectiveCall& call) {
    if (call.kind != CollectiveKind::kAllToAll) return Status();
    const std::size_t inside = call.send_counts[2];
    clock.Advance(FromSeconds(
        inside > 0 ? 7e-6 + 2e-9 * static_cast<double>(inside) : 90e-6));
    return Status();
  };
  const auto costs = MeasureLinks(group, run, clock);
  ASSERT_TRUE(costs.ok());
  const auto& [together, alone] = costs.value();
  EXPECT_NEAR(together.inside.latency_seconds + together.inside.message_seconds,
              7e-6, 1e-7);
  EXPECT_NEAR(alone.inside.latency_seconds, together.inside.latency_seconds,
              1e-9);
  EXPECT_NEAR(alone.inside.seconds_per_byte, 2e-9, 1e-11);
}

// For 30 ms another program has the cores, longer than all exchanges of some
// kinds take in one pass.
TEST(MeasureLinks, OutlivesADisturbance) {
  Network calm;
  Network disturbed;
  int exchanges = 0;
  const auto measure = [&](Network& network, bool disturb) {
    return MeasureLinks(
        network.group(),
        [&](const CollectiveCall& call) {
          const bool busy = disturb && call.kind == CollectiveKind::kAllToAll &&
                            ++exchanges > 24 && exchanges <= 54;
          if (busy) network.Wait(1e-3);
          return network.Run(call);
        },
        network.clock());
  };
  const auto expected = measure(calm, false);
  const auto seen = measure(disturbed, true);
  ASSERT_TRUE(expected.ok() && seen.ok());
  EXPECT_GE(exchanges, 54);
  EXPECT_NEAR(seen.value().together.across.latency_seconds,
              expected.value().together.across.latency_seconds, 1e-8);
  EXPECT_NEAR(seen.value().together.across.seconds_per_byte,
              expected.value().together.across.seconds_per_byte, 1e-12);
  EXPECT_NEAR(seen.value().together.across.long_seconds_per_byte,
              expected.value().together.across.long_seconds_per_byte, 1e-12);
}

// Messages of moderate size wait for a core whenever they are measured.
TEST(MeasureLinks, DoesNotTakeAWaitForTheCostOfBytes) {
  CallGroup group;
  group.size = 2;
  group.topology.host = {0, 1};
  ManualClock clock;
  const auto run = [&](const CollectiveCall& call) {
    if (call.kind != CollectiveKind::kAllToAll) return Status();
    const auto bytes = static_cast<double>(call.send_counts[1]);
    const bool waits = bytes == kShortMessageBytes;
    clock.Advance(FromSeconds(20e-6 + 1e-9 * bytes + (waits ? 300e-6 : 0)));
    return Status();
  };
  const auto costs = MeasureLinks(group, run, clock);
  ASSERT_TRUE(costs.ok());
  const LinkModel& across = costs.value().together.across;
  EXPECT_NEAR(across.seconds_per_byte, 1e-9, 1e-11);
  EXPECT_EQ(across.long_seconds_per_byte, 0);
}

// If a small message was measured on a busy core, a large one would seem free.
TEST(MeasureLinks, MeasuresNothingOnOneHost) {
  Network network;
  CallGroup group = network.group();
  group.topology.host = {7, 7, 7, 7};
  const auto costs = MeasureLinks(
      group, [&](const CollectiveCall& call) { return network.Run(call); },
      network.clock());
  ASSERT_TRUE(costs.ok());
  EXPECT_EQ(network.calls(), 0);
  CallQuestion question;
  question.hosts = HostMap(4, group.topology);
  question.count = 32'000'000;
  question.all_share_memory = question.hosts_share_memory = true;
  question.model = costs.value().together;
  EXPECT_EQ(ChooseAlgorithm(CollectiveKind::kAllreduce, question).algorithm,
            &allreduce::kShared);
}

TEST(MeasureCallCost, FindsLatencyAndBandwidthOfAnAllreduce) {
  Network network;
  const auto cost = MeasureCallCost(
      [&](const CollectiveCall& call) { return network.Run(call); },
      network.clock());
  ASSERT_TRUE(cost.ok());
  EXPECT_NEAR(cost.value().seconds_per_byte, 2 * 8e-9, 1e-11);
  EXPECT_NEAR(cost.value().latency_seconds, 2 * (90e-6 + 4096 * 8e-9), 1e-8);
}

// Keeps the calls; the test completes them.
class KeptCalls final : public Collective {
 public:
  void Start(const CollectiveCall& call, Done done) override {
    calls.push_back({call, done});
  }
  bool Poll() override { return false; }
  std::size_t in_flight() const override { return 0; }
  bool Busy(GroupId, Channel) const override { return false; }
  std::uint64_t bytes_sent(GroupId, Channel) const override { return 0; }
  std::string OldestCall() const override { return {}; }

  std::vector<std::pair<CollectiveCall, Done>> calls;
};

TEST(Tuner, SendsTheTimesOfAFewStepsWithTheStepsAfterThem) {
  const PoolLayout layout = PoolLayout::Create({1000, 50'000}).value();
  KeptCalls collective;
  CallCost cost;
  cost.latency_seconds = 1e-5;
  cost.seconds_per_byte = 1e-9;
  Tuner tuner({&layout, &collective, /*group=*/3, sizeof(float), 1.0, cost});
  // A restored session tunes as a new one does.
  for (int life = 0; life < 2; ++life) {
    std::vector<std::uint64_t> sent_with;
    for (std::uint64_t step = 0; step < 40; ++step) {
      const std::size_t before = collective.calls.size();
      tuner.Send(step);
      EXPECT_EQ(tuner.in_flight(), collective.calls.size() > before);
      if (tuner.in_flight()) {
        const auto& [call, done] = collective.calls.back();
        sent_with.push_back(step);
        EXPECT_EQ(call.op, ReduceOp::kMax);
        EXPECT_EQ(call.channel, Channel::kGradients);
        EXPECT_EQ(call.group, 3U);
        EXPECT_EQ(call.count, 2U);
        EXPECT_EQ(tuner.Take(), std::nullopt);
        done(Status(), 0);
        EXPECT_FALSE(tuner.in_flight());
        EXPECT_NE(tuner.Take(), std::nullopt);
      }
      EXPECT_EQ(tuner.Take(), std::nullopt);
      tuner.StepDone({0.0F, 1e-3F});
    }
    EXPECT_EQ(sent_with, (std::vector<std::uint64_t>{2, 5, 17}));
    tuner.StepDone({});
    tuner.Restart();
  }
}

// The log of a session that opens.
std::string Opening(testing::Over over, std::size_t bucket_bytes,
                    const std::vector<TensorSpec>& tensors) {
  testing::Job job;
  job.size = 3;  // kMixed: on two hosts.
  job.over = over;
  job.tensors = tensors;
  job.options.bucket_bytes = bucket_bytes;
  job.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  testing::RunRanks(job, [](GradientSession&) {});
  return ::testing::internal::GetCapturedStderr();
}

TEST(Opening, MeasuresIfSomethingDependsOnIt) {
  const std::vector<TensorSpec> tensors = {{"weight", 1000}};
  constexpr std::size_t kSet = 4096;
  const auto says = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  const char* const kAllreduce = "measured allreduce: latency";
  const char* const kLinks = "links between hosts (a line of ";
  const auto tuned = Opening(testing::Over::kMemory, kAutoBytes, tensors);
  EXPECT_TRUE(says(tuned, kAllreduce));
  for (const auto& still : {Opening(testing::Over::kMemory, kSet, tensors),
                            Opening(testing::Over::kMemory, kAutoBytes, {})}) {
    EXPECT_FALSE(says(still, kAllreduce) || says(still, kLinks));
  }
  EXPECT_TRUE(says(Opening(testing::Over::kMixed, kSet, {}), kLinks));
}

}  // namespace
}  // namespace gradientflow
