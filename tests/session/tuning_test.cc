#include "gradientflow/session/tuning.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "tests/session/ranks.h"
#include "transports/collectives/choose.h"

namespace gradientflow {
namespace {

// A network on which an allreduce takes `latency` and `per_byte`; 20 times that
// for small ones while cores are busy.
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
  // Of 2(p-1)/p of the bytes.
  EXPECT_NEAR(costs.value().model.across.seconds_per_byte, 8e-9 / 1.5, 1e-11);
  EXPECT_NEAR(costs.value().model.across.latency_seconds, 50e-6 + 4096 * 8e-9,
              1e-9);
}

// With a small allreduce that met a busy core, a large one seems free.
TEST(MeasureCosts, ChoosesAlikeOnOneHostHoweverBusyItIs) {
  for (const int size : {2, 3, 4, 8}) {
    std::vector<std::vector<AllreduceAlgorithm>> chosen;
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
      EXPECT_EQ(chosen[0].front(), AllreduceAlgorithm::kOneRound);
    }
    EXPECT_EQ(chosen[0].back(), AllreduceAlgorithm::kShared);
  }
}

// What a session says as it opens.
std::string Opening(testing::Over over, std::size_t bucket_bytes,
                    const std::vector<TensorSpec>& tensors) {
  testing::Job job;
  job.size = 3;  // kMixed: on two hosts.
  job.over = over;
  job.tensors = tensors;
  job.options.bucket_bytes = bucket_bytes;
  job.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  testing::RunRanks(job, [](Session&) {});
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
