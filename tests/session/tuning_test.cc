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
#include "tests/session/ranks.h"

namespace gradientflow {
namespace {

// A network on which an allreduce takes `latency` and `per_byte`; small ones
// take 20 times as long while cores are busy.
class Network {
 public:
  Network(double latency, double per_byte)
      : latency_(latency), per_byte_(per_byte) {}

  Result<MeasuredCosts> Measure(int size) {
    return MeasureCosts(
        size, [this](const CollectiveCall& call) { return Run(call); }, clock_);
  }
  void SetBusy(bool busy) { busy_ = busy; }

 private:
  Status Run(const CollectiveCall& call) {
    const double bytes =
        static_cast<double>(call.count) * static_cast<double>(sizeof(float));
    const double factor = busy_ && bytes < 1e5 ? 20 : 1;
    clock_.Advance(FromSeconds(factor * (latency_ + bytes * per_byte_)));
    return Status();
  }

  const double latency_;
  const double per_byte_;
  bool busy_ = false;
  ManualClock clock_;
};

TEST(MeasureCosts, FindsLatencyAndBandwidthBetweenHosts) {
  Network network(50e-6, 8e-9);
  const auto costs = network.Measure(4);
  ASSERT_TRUE(costs.ok());
  EXPECT_NEAR(costs.value().channel.seconds_per_byte, 8e-9, 1e-11);
  EXPECT_NEAR(costs.value().channel.latency_seconds, 50e-6 + 4096 * 8e-9, 1e-9);
  // The cost per byte of 2(p-1)/p of the bytes.
  EXPECT_NEAR(costs.value().model.across.seconds_per_byte, 8e-9 / 1.5, 1e-11);
  EXPECT_NEAR(costs.value().model.across.latency_seconds, 50e-6 + 4096 * 8e-9,
              1e-9);
}

// If a small allreduce was measured on a busy core, a large one would seem
// free.
TEST(MeasureCosts, ChoosesAlikeOnOneHostHoweverBusyItIs) {
  for (const int size : {2, 3, 4, 8}) {
    std::vector<std::vector<const AllreduceAlgorithm*>> chosen;
    for (const bool busy : {false, true}) {
      Network network(4e-6, 4e-11);
      network.SetBusy(busy);
      const auto costs = network.Measure(size);
      ASSERT_TRUE(costs.ok());
      AllreduceQuestion question;
      question.size = size;
      question.topology.host.assign(static_cast<std::size_t>(size), 0);
      question.all_share_memory = question.hosts_share_memory = true;
      question.model = costs.value().model;
      auto& of_this = chosen.emplace_back();
      for (const std::size_t count : {1, 1000, 26'000, 400'000, 32'000'000}) {
        question.count = count;
        of_this.push_back(ChooseAllreduce(question).algorithm);
      }
    }
    EXPECT_EQ(chosen[0], chosen[1]) << size << " ranks";
    if (size == 2) {
      EXPECT_EQ(chosen[0].front(), &allreduce::kOneRound);
    }
    EXPECT_EQ(chosen[0].back(), &allreduce::kShared);
  }
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
  const auto measures = [](const std::string& text) {
    return text.find("measured: latency") != std::string::npos;
  };
  EXPECT_TRUE(measures(Opening(testing::Over::kMemory, kAutoBytes, tensors)));
  EXPECT_FALSE(measures(Opening(testing::Over::kMemory, kSet, tensors)));
  EXPECT_FALSE(measures(Opening(testing::Over::kMemory, kAutoBytes, {})));
  EXPECT_TRUE(measures(Opening(testing::Over::kMixed, kSet, {})));
}

}  // namespace
}  // namespace gradientflow
