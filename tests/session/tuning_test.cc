#include "gradientflow/buckets/tuning.h"

#include <gtest/gtest.h>

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
// of a host share; inside a host, 2 us, 0.5 us and 0.1 ns. An allreduce takes
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
      // The last of each four numbers is no time.
      for (std::size_t i = 0; i < call.count; ++i) {
        if (call.count == 2 || i % 4 != 3) times[i] *= 2;
      }
      return Status();
    }
    double seconds = 90e-6 + 4.0 * static_cast<double>(call.count) * 8e-9;
    if (call.kind == CollectiveKind::kAllToAll) seconds = Exchange(call);
    clock_.Advance(FromSeconds(seconds));
    return Status();
  }
  const Clock& clock() const { return clock_; }
  int calls() const { return calls_; }

 private:
  static double Exchange(const CollectiveCall& call) {
    double messages = 0;
    double bytes = 0;
    for (const std::size_t count : call.send_counts) {
      messages += count > 0 ? 1 : 0;
      bytes += static_cast<double>(count);
    }
    EXPECT_EQ(call.send_counts[0], 0U);
    const bool inside = call.send_counts[1] > 0;
    EXPECT_TRUE(!inside || messages == 1);
    return inside ? 2e-6 + 0.5e-6 * messages + 0.1e-9 * bytes
                  : 50e-6 + 5e-6 * messages + 2 * 8e-9 * bytes;
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
  // With one peer inside, a message's part of the time is the typical one.
  EXPECT_NEAR(inside.latency_seconds + inside.message_seconds, 2 * 2.5e-6,
              1e-8);
  EXPECT_NEAR(inside.seconds_per_byte, 2 * 0.1e-9, 1e-12);
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

TEST(MeasureChannel, FindsLatencyAndBandwidthOfAnAllreduce) {
  Network network;
  const auto channel = MeasureChannel(
      [&](const CollectiveCall& call) { return network.Run(call); },
      network.clock());
  ASSERT_TRUE(channel.ok());
  EXPECT_NEAR(channel.value().seconds_per_byte, 2 * 8e-9, 1e-11);
  EXPECT_NEAR(channel.value().latency_seconds, 2 * (90e-6 + 4096 * 8e-9), 1e-8);
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
  ChannelModel channel;
  channel.latency_seconds = 1e-5;
  channel.seconds_per_byte = 1e-9;
  Tuner tuner({&layout, &collective, /*group=*/3, sizeof(float), 1.0, channel});
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
  const char* const kLinks = "links between hosts: latency";
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
