#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>

#include "tests/device/fake_device.h"
#include "tests/session/steps.h"

// Sessions that close while their device is at work, in which one call fails
// that asks for the end of that work.
namespace gradientflow::testing {
namespace {

struct Case {
  const char* name;
  Over over;
  FakeCall call;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class DeviceClose : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceClose, KeepsThePoolUntilTheWorkIsDone) {
  Job job;
  job.over = GetParam().over;
  job.size = 2;
  job.tensors = SomeTensors();
  OpenRanks(job, [&](int, Opened opened) {
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    std::unique_ptr<GradientSession> session = std::move(opened).value();
    ProduceAll(*session, 0);
    FinishAndCheck(*session, 0);
    FakeDevice& device = *DeviceOfThisRank();
    Stream& stream = *StreamOfThisRank();
    const BufferView pool = session->pool();
    const std::function<void()> release = device.HoldStream(&stream);
    ASSERT_TRUE(stream.Fill(pool.data, 1, pool.bytes).ok());
    device.FailCall(
        GetParam().call, 0,
        Status(StatusCode::kFailedPrecondition, "the stream is captured"));
    // The session asks again and again, unless it believes the failed call.
    constexpr std::uint64_t kQuestions = 50;
    const std::uint64_t asked = device.count(FakeCall::kQuery);
    std::atomic<bool> closed = false;
    bool kept = false;
    std::thread releasing([&] {
      while (device.count(FakeCall::kQuery) < asked + kQuestions && !closed) {
        std::this_thread::yield();
      }
      kept = device.Owns(pool.data);
      release();
    });
    session.reset();
    closed = true;
    EXPECT_FALSE(device.Owns(pool.data));
    releasing.join();
    EXPECT_TRUE(kept);
    EXPECT_TRUE(stream.Synchronize().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Calls, DeviceClose,
    ::testing::Values(Case{"StagedNewEvent", Over::kDevices,
                           FakeCall::kNewEvent},
                      Case{"StagedRecord", Over::kDevices, FakeCall::kRecord},
                      Case{"StagedQuery", Over::kDevices, FakeCall::kQuery},
                      Case{"NcclNewEvent", Over::kNccl, FakeCall::kNewEvent},
                      Case{"NcclRecord", Over::kNccl, FakeCall::kRecord},
                      Case{"NcclQuery", Over::kNccl, FakeCall::kQuery}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace gradientflow::testing
