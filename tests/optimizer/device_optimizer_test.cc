#include "gradientflow/optimizer/device_optimizer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "tests/device/fake_device.h"

// How the optimiser behaves across streams. tests/session and tests/gpu compare
// its numbers with the CPU's.
namespace gradientflow {
namespace {

using testing::FakeCall;
using testing::FakeDevice;
using testing::FakeLag;
using testing::FakeOptions;

constexpr std::size_t kElements = 6;
constexpr OptimizerOptions kSgd = {.lr = 1, .momentum = 0.5F};
constexpr OptimizerOptions kLars = {.kind = OptimizerOptions::Kind::kLars,
                                    .lr = 1,
                                    .momentum = 0.5F,
                                    .lars_eta = 1};

class DeviceOptimizerTest : public ::testing::Test {
 protected:
  DeviceOptimizerTest()
      : device_(FakeOptions{.lag = FakeLag::kLazy}),
        first_(device_.NewStream(false).value()),
        second_(device_.NewStream(false).value()),
        pool_(Floats(1)) {
    DeviceOptimizerArgs parts;
    parts.layout = &layout_;
    parts.device = &device_;
    parts.pool = pool_.get();
    optimizer_ = DeviceOptimizer::Create(std::move(parts)).value();
  }

  // Device memory of kElements elements, all `value`.
  DeviceMemory Floats(float value) {
    DeviceMemory memory = device_.Allocate(kElements * sizeof(float)).value();
    const std::vector<float> values(kElements, value);
    EXPECT_TRUE(
        first_->Copy(memory.get(), values.data(), kElements * sizeof(float))
            .ok());
    EXPECT_TRUE(first_->Synchronize().ok());
    return memory;
  }
  std::vector<float> Read(const DeviceMemory& memory, Stream& stream) {
    std::vector<float> values(kElements);
    EXPECT_TRUE(
        stream.Copy(values.data(), memory.get(), kElements * sizeof(float))
            .ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return values;
  }
  void Update(const OptimizerOptions& config, const DeviceMemory& weights,
              Stream& stream) {
    auto* const data = reinterpret_cast<float*>(weights.get());
    EXPECT_TRUE(optimizer_->Update(0, config, {&data, 1}, {}, stream).ok());
  }

  const PoolLayout layout_ = PoolLayout::Create({kElements}).value();
  FakeDevice device_;
  std::unique_ptr<Stream> first_;
  std::unique_ptr<Stream> second_;
  DeviceMemory pool_;  // Gradients.
  std::unique_ptr<DeviceOptimizer> optimizer_;
};

TEST_F(DeviceOptimizerTest, AStepOnAnotherStreamComesAfterTheOneBefore) {
  for (const OptimizerOptions& config : {kSgd, kLars}) {
    const DeviceMemory weights = Floats(8);
    Update(config, weights, *first_);
    EXPECT_TRUE(first_->Synchronize().ok());

    const std::function<void()> release = device_.HoldStream(first_.get());
    Update(config, weights, *first_);
    Update(config, weights, *second_);
    const std::unique_ptr<Event> end = device_.NewEvent().value();
    EXPECT_TRUE(second_->Record(end.get()).ok());
    // With each query every stream does a piece of work if it can.
    for (int look = 0; look < 20; ++look) EXPECT_FALSE(end->Query().value());
    release();
    EXPECT_TRUE(end->Synchronize().ok());
  }
}

// Each step has its own table of weights: that of the next step must not
// replace one that is still to be read.
TEST_F(DeviceOptimizerTest, OtherWeightsOnAnotherStreamWaitForTheStepBefore) {
  const DeviceMemory one = Floats(8);
  const DeviceMemory other = Floats(80);
  const std::function<void()> release = device_.HoldStream(first_.get());
  Update(kSgd, one, *first_);
  const std::uint64_t before = device_.count(FakeCall::kSynchronize);
  std::thread releasing([&] {
    while (device_.count(FakeCall::kSynchronize) == before) {
      std::this_thread::yield();
    }
    release();
  });
  Update(kSgd, other, *second_);
  releasing.join();
  // hu: 1, then 0.5 * 1 + 1.
  EXPECT_EQ(Read(other, *second_), std::vector<float>(kElements, 78.5F));
  EXPECT_EQ(Read(one, *first_), std::vector<float>(kElements, 7));
}

TEST_F(DeviceOptimizerTest, MomentumIsReadAndPutBackAfterTheStepBefore) {
  const DeviceMemory weights = Floats(8);
  Update(kSgd, weights, *first_);
  EXPECT_EQ(optimizer_->Momentum(*second_).value(),
            std::vector<float>(kElements, 1));
  Update(kSgd, weights, *first_);
  const std::vector<float> put(kElements, 2);
  EXPECT_TRUE(
      optimizer_->RestoreMomentum(std::as_bytes(std::span(put)), *second_)
          .ok());
  Update(kSgd, weights, *first_);
  // 8 - 1 - 1.5 - (0.5 * 2 + 1).
  EXPECT_EQ(Read(weights, *first_), std::vector<float>(kElements, 3.5F));
}

TEST_F(DeviceOptimizerTest, AnUploadThatFailedIsMadeAgain) {
  const DeviceMemory weights = Floats(5);
  auto* const data = reinterpret_cast<float*>(weights.get());
  device_.FailCall(FakeCall::kCopy, 0, Status(StatusCode::kInternal, "once"));
  EXPECT_FALSE(optimizer_->Update(0, kSgd, {&data, 1}, {}, *first_).ok());
  Update(kSgd, weights, *first_);
  EXPECT_EQ(Read(weights, *first_), std::vector<float>(kElements, 4));
}

TEST_F(DeviceOptimizerTest, ARefusalOfTheStreamChangesNothing) {
  const DeviceMemory weights = Floats(5);
  auto* const data = reinterpret_cast<float*>(weights.get());
  const Status captured(StatusCode::kFailedPrecondition, "captured");
  device_.FailCall(FakeCall::kWait, 0, captured);
  EXPECT_EQ(optimizer_->Update(0, kSgd, {&data, 1}, {}, *first_).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Read(weights, *first_), std::vector<float>(kElements, 5));
  // Here the weights have changed, so it is no refusal.
  device_.FailCall(FakeCall::kRecord, 0, captured);
  EXPECT_EQ(optimizer_->Update(0, kSgd, {&data, 1}, {}, *first_).code(),
            StatusCode::kInternal);
  EXPECT_EQ(Read(weights, *first_), std::vector<float>(kElements, 4));
}

}  // namespace
}  // namespace gradientflow
