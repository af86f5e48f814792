#include "gradientflow/session/engine_times.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/fake_device.h"

// The times of a step by the events of a device whose clock is the test's:
// backward takes 2 s for a section of ten elements, an exchange 3 s.
namespace gradientflow::testing {
namespace {

using Of = DeviceSync::Of;

class TimesTest : public ::testing::Test {
 protected:
  TimesTest() {
    FakeOptions options;
    options.lag = FakeLag::kRandom;
    device_ = std::make_unique<FakeDevice>(options);
    backward_ = device_->NewStream(false).value();
    wire_ = device_->NewStream(true).value();
    device_->SetWorkSeconds(backward_.get(), 2);
    device_->SetWorkSeconds(wire_.get(), 3);
    memory_ = device_->Allocate(64).value();
    end_ = device_->NewTimedEvent().value();
    sync_ = DeviceSync::Create(*device_, {10, 20, 30, 40}).value();
    EXPECT_TRUE(sync_->SetProducer(backward_->native()).ok());
    wire_times_ = std::make_unique<WireTimes>(device_.get(), wire_.get());
  }
  void Write(std::size_t section) {
    ASSERT_TRUE(backward_->Fill(memory_.get(), 1, 4).ok());
    ASSERT_TRUE(sync_->Ready(section).ok());
  }
  // An exchange of what the sections up to this one hold.
  void Exchange(std::size_t section) {
    ASSERT_TRUE(sync_->AwaitWritten(kSectionEnds[section], *wire_).ok());
    ASSERT_TRUE(wire_->Fill(memory_.get() + 32, 1, 4).ok());
    ASSERT_TRUE(wire_times_->Ended(kSectionEnds[section]).ok());
  }
  void End() {
    ASSERT_TRUE(wire_->Record(end_.get()).ok());
    ASSERT_TRUE(backward_->Synchronize().ok());
    ASSERT_TRUE(wire_->Synchronize().ok());
  }
  EngineTimes Times(Of step) const {
    return TimesOnDevice({sync_.get(), step, kSectionEnds}, *wire_times_, *end_)
        .value();
  }
  double Ready(Of step, std::size_t section) const {
    return sync_->ReadySeconds(step, section).value();
  }

  static constexpr std::size_t kSectionEnds[] = {10, 20, 30, 40};

  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Stream> backward_;
  std::unique_ptr<Stream> wire_;
  DeviceMemory memory_;
  std::unique_ptr<Event> end_;
  std::unique_ptr<DeviceSync> sync_;
  std::unique_ptr<WireTimes> wire_times_;
};

TEST_F(TimesTest, OfAnExchangeWithoutAnEventAreAnError) {
  device_->FailCall(FakeCall::kNewEvent, 1,
                    Status(StatusCode::kResourceExhausted, "no more events"));
  EXPECT_EQ(wire_times_->Begin(2).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(wire_times_->Ended(10).ok());
  EXPECT_EQ(wire_times_->Ended(20).code(), StatusCode::kInternal);
  EXPECT_EQ(wire_times_->exchanges().size(), 1U);
  ASSERT_TRUE(wire_times_->Begin(2).ok());
  EXPECT_TRUE(wire_times_->Ended(10).ok());
  EXPECT_TRUE(wire_times_->Ended(20).ok());
}

// Everything is submitted while the device stands still, so that the host's
// times say nothing.
TEST_F(TimesTest, AreThoseOfTheDeviceNotOfTheSubmission) {
  ASSERT_TRUE(wire_times_->Begin(2).ok());
  device_->HoldStreams();
  for (std::size_t k = 0; k < 4; ++k) Write(k);
  Exchange(1);
  Exchange(3);
  device_->ReleaseStreams();
  End();
  // Written at 0, 2, 4, 6; on the wire from 2 to 5 and from 6 to 9.
  const EngineTimes times = Times(Of::kThisStep);
  EXPECT_DOUBLE_EQ(times.backward_seconds, 6);
  EXPECT_DOUBLE_EQ(times.hidden_seconds, 3);
  EXPECT_DOUBLE_EQ(times.exposed_seconds, 3);
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_DOUBLE_EQ(Ready(Of::kThisStep, k), 2.0 * static_cast<double>(k));
  }
}

TEST_F(TimesTest, AnExchangeWaitsForTheOneBeforeItAndForEarlierSections) {
  ASSERT_TRUE(wire_times_->Begin(4).ok());
  for (const std::size_t k : {2, 0, 1, 3}) Write(k);
  for (std::size_t k = 0; k < 4; ++k) Exchange(k);
  End();
  // Written at 2, 4, 0, 6; the first is on the wire from 2 to 5, and the others
  // follow without a pause until 14.
  const EngineTimes times = Times(Of::kThisStep);
  EXPECT_DOUBLE_EQ(times.backward_seconds, 6);
  EXPECT_DOUBLE_EQ(times.hidden_seconds, 3 + 1);
  EXPECT_DOUBLE_EQ(times.exposed_seconds, 14 - 6);
  EXPECT_DOUBLE_EQ(Ready(Of::kThisStep, 2), 0);
  EXPECT_DOUBLE_EQ(Ready(Of::kThisStep, 1), 4);
}

TEST_F(TimesTest, OfTheStepBeforeStayWhileHooksAreInTheNext) {
  ASSERT_TRUE(wire_times_->Begin(1).ok());
  for (std::size_t k = 0; k < 4; ++k) Write(k);
  Exchange(3);
  End();
  sync_->NextStep();
  for (const std::size_t k : {3, 1}) Write(k);
  End();
  // The second End() moved the event, which follows the exchange.
  const EngineTimes times = Times(Of::kStepBefore);
  EXPECT_DOUBLE_EQ(times.backward_seconds, 6);
  EXPECT_DOUBLE_EQ(times.hidden_seconds, 0);
  EXPECT_DOUBLE_EQ(times.exposed_seconds, 3);
  EXPECT_DOUBLE_EQ(Ready(Of::kStepBefore, 3), 6);
  EXPECT_DOUBLE_EQ(Ready(Of::kThisStep, 3), 0);
  EXPECT_DOUBLE_EQ(Ready(Of::kThisStep, 1), 2);
}

TEST_F(TimesTest, OfSectionsOfSeveralThreadsAreAwaitedAndAskedForOneByOne) {
  ASSERT_TRUE(wire_times_->Begin(1).ok());
  std::thread([&] { Write(3); }).join();
  for (std::size_t k = 0; k < 3; ++k) Write(k);
  const std::uint64_t waits = device_->count(FakeCall::kWait);
  Exchange(3);
  EXPECT_EQ(device_->count(FakeCall::kWait) - waits, 4U);
  End();
  const std::uint64_t asked = device_->count(FakeCall::kSecondsSince);
  EXPECT_DOUBLE_EQ(Times(Of::kThisStep).backward_seconds, 6);
  EXPECT_GT(device_->count(FakeCall::kSecondsSince) - asked, 4U);
}

TEST_F(TimesTest, OneEventIsAwaitedForTheSectionsOfOneThread) {
  ASSERT_TRUE(wire_times_->Begin(2).ok());
  for (const std::size_t k : {2, 0, 1, 3}) Write(k);
  const std::uint64_t waits = device_->count(FakeCall::kWait);
  Exchange(1);
  EXPECT_EQ(device_->count(FakeCall::kWait) - waits, 1U);
  Exchange(2);  // Was there before section 1.
  EXPECT_EQ(device_->count(FakeCall::kWait) - waits, 1U);
  End();
}

// An update of the step before may still read what a step that is given up
// sends.
TEST_F(TimesTest, SectionsThatWereNeverReadyWaitForTheProducer) {
  const std::function<void()> release = device_->HoldStream(backward_.get());
  Write(1);
  ASSERT_TRUE(backward_->Fill(memory_.get(), 1, 4).ok());
  ASSERT_TRUE(sync_->AwaitWritten(kSectionEnds[3], *wire_).ok());
  ASSERT_TRUE(wire_->Record(end_.get()).ok());
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(end_->Query().value());
  release();
  ASSERT_TRUE(wire_->Synchronize().ok());
  EXPECT_TRUE(end_->Query().value());
}

TEST_F(TimesTest, AreAskedForOnlyWhenTheDeviceIsThere) {
  ASSERT_TRUE(wire_times_->Begin(1).ok());
  device_->HoldStreams();
  Write(0);
  EXPECT_FALSE(sync_->Reached().value());
  for (std::size_t k = 1; k < 4; ++k) Write(k);
  const StepOnDevice step = {sync_.get(), Of::kThisStep, kSectionEnds};
  EXPECT_FALSE(BackwardOnDevice(step).ok());
  device_->ReleaseStreams();
  End();
  EXPECT_TRUE(sync_->Reached().value());
  EXPECT_DOUBLE_EQ(BackwardOnDevice(step).value(), 6);
}

TEST_F(TimesTest, EventsAreMadeOnceForAsManyExchangesAsEver) {
  const std::uint64_t before = device_->count(FakeCall::kNewEvent);
  for (const std::size_t exchanges : {5, 3, 5, 1}) {
    ASSERT_TRUE(wire_times_->Begin(exchanges).ok());
    EXPECT_TRUE(wire_times_->exchanges().empty());
  }
  EXPECT_EQ(device_->count(FakeCall::kNewEvent), before + 5);
}

}  // namespace
}  // namespace gradientflow::testing
