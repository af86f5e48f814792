#include "gradientflow/device/work_end.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>

#include "gradientflow/base/status.h"
#include "tests/device/fake_device.h"

namespace gradientflow::testing {
namespace {

std::unique_ptr<Stream> NewStream(FakeDevice& device) {
  Result<std::unique_ptr<Stream>> stream = device.NewStream(false);
  EXPECT_TRUE(stream.ok());
  return std::move(stream).value();
}

void Await(WorkEnd* end) {
  while (!end->Reached()) {
    EXPECT_TRUE(end->doubt().ok()) << end->doubt().ToString();
    std::this_thread::yield();
  }
}

void ExpectHeld(WorkEnd* end) {
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(end->Reached());
  EXPECT_TRUE(end->doubt().ok()) << end->doubt().ToString();
}

TEST(WorkEndTest, WithoutWorkIsReached) {
  FakeDevice device;
  WorkEnd end(device);
  EXPECT_TRUE(end.Reached());
}

TEST(WorkEndTest, WaitsForEveryStreamAndEvent) {
  FakeDevice device;
  const auto streams = {NewStream(device), NewStream(device),
                        NewStream(device)};
  for (const auto& held : streams) {
    const std::function<void()> release = device.HoldStream(held.get());
    WorkEnd end(device);
    for (const auto& stream : streams) end.Add(*stream);
    ExpectHeld(&end);
    release();
    Await(&end);
  }

  const auto event = device.NewEvent();
  ASSERT_TRUE(event.ok());
  const std::function<void()> release =
      device.HoldStream(streams.begin()->get());
  ASSERT_TRUE((*streams.begin())->Record(event.value().get()).ok());
  WorkEnd end(device);
  end.Add(*event.value());
  ExpectHeld(&end);
  release();
  Await(&end);
}

// Only what was submitted before the first look counts.
TEST(WorkEndTest, DoesNotWaitForLaterWork) {
  FakeDevice device;
  const auto stream = NewStream(device);
  const std::function<void()> early = device.HoldStream(stream.get());
  WorkEnd end(device);
  end.Add(*stream);
  ExpectHeld(&end);
  const std::function<void()> late = device.HoldStream(stream.get());
  early();
  Await(&end);
  late();
}

struct Failing {
  const char* name;
  FakeCall call;
};
void PrintTo(const Failing& failing, std::ostream* out) {
  *out << failing.name;
}

class WorkEndTroubleTest : public ::testing::TestWithParam<Failing> {};

// The work is still there, whatever call has failed.
TEST_P(WorkEndTroubleTest, ACallThatFailsIsMadeAgain) {
  FakeDevice device;
  const auto stream = NewStream(device);
  const std::function<void()> release = device.HoldStream(stream.get());
  WorkEnd end(device);
  end.Add(*stream);
  const Status captured(StatusCode::kFailedPrecondition, "being captured");
  for (int times = 0; times < 2; ++times) {
    device.FailCall(GetParam().call, 0, captured);
    EXPECT_FALSE(end.Reached());
    EXPECT_NE(end.doubt().message().find("being captured"), std::string::npos);
    if (GetParam().call != FakeCall::kQuery) continue;
    ExpectHeld(&end);
  }
  ExpectHeld(&end);
  release();
  Await(&end);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, WorkEndTroubleTest,
    ::testing::Values(Failing{"NewEvent", FakeCall::kNewEvent},
                      Failing{"Record", FakeCall::kRecord},
                      Failing{"Query", FakeCall::kQuery}),
    [](const auto& failing) { return std::string(failing.param.name); });

TEST(WorkEndTest, ALostDeviceDoesNoMoreWork) {
  FakeDevice device;
  const auto stream = NewStream(device);
  const auto memory = device.Allocate(64);
  ASSERT_TRUE(memory.ok());
  device.FailWork(0, Status(StatusCode::kInternal, "fell off the bus"));
  ASSERT_TRUE(stream->Fill(memory.value().get(), 1, 64).ok());
  EXPECT_FALSE(stream->Synchronize().ok());
  WorkEnd end(device);
  end.Add(*stream);
  EXPECT_TRUE(end.Reached());
  EXPECT_TRUE(end.doubt().ok());
}

}  // namespace
}  // namespace gradientflow::testing
