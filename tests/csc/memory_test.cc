#include "gradientflow/csc/memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "gradientflow/base/workers.h"
#include "tests/csc/csc_golden.h"
#include "tests/device/fake_device.h"

// The golden values in host memory and in device memory.
namespace gradientflow::testing {
namespace {

TEST(HostCscMemory, FollowsTheGoldenValues) {
  ExpectGoldenSteps(*HostCscMemory());
}

TEST(HostCscMemory, FollowsTheGoldenValuesInTheGradients) {
  ExpectGoldenSteps(*HostCscMemory(), ResidualPlace::kInGradients);
  ExpectSkippedStep(*HostCscMemory(), ResidualPlace::kInGradients);
}

TEST(HostCscMemory, FollowsTheGoldenValuesWithWorkers) {
  Workers workers(3, std::chrono::nanoseconds(0));
  ExpectGoldenSteps(*HostCscMemory(&workers));
  ExpectSkippedStep(*HostCscMemory(&workers));
}

TEST(HostCscMemory, KeepsWhatASkippedStepHadSent) {
  ExpectSkippedStep(*HostCscMemory());
}

class DeviceMemoryTest : public ::testing::TestWithParam<FakeLag> {
 protected:
  DeviceMemoryTest()
      : device_({.lag = GetParam()}),
        stream_(device_.NewStream(false).value()),
        memory_(DeviceCscMemory({&device_, stream_.get()}).value()) {}
  FakeDevice device_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<CscMemory> memory_;
};

INSTANTIATE_TEST_SUITE_P(Lags, DeviceMemoryTest,
                         ::testing::Values(FakeLag::kNone, FakeLag::kRandom,
                                           FakeLag::kLazy));

TEST_P(DeviceMemoryTest, FollowsTheGoldenValues) {
  ExpectGoldenSteps(*memory_);
}

TEST_P(DeviceMemoryTest, FollowsTheGoldenValuesInTheGradients) {
  ExpectGoldenSteps(*memory_, ResidualPlace::kInGradients);
}

TEST_P(DeviceMemoryTest, KeepsWhatASkippedStepHadSent) {
  ExpectSkippedStep(*memory_);
  ExpectSkippedStep(*memory_, ResidualPlace::kInGradients);
}

TEST_P(DeviceMemoryTest, SaysWhenWorkIsDone) {
  device_.HoldStreams();
  const DeviceMemory from = memory_->AllocateOnHost(8).value();
  const DeviceMemory to = memory_->Allocate(8).value();
  ASSERT_TRUE(memory_->Copy(to.get(), from.get(), 8).ok());
  ASSERT_TRUE(memory_->Mark().ok());
  EXPECT_FALSE(memory_->Reached().value());
  device_.ReleaseStreams();
  ASSERT_TRUE(memory_->Synchronize().ok());
  EXPECT_TRUE(memory_->Reached().value());
}

}  // namespace
}  // namespace gradientflow::testing
