#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <string>
#include <utility>

#include "tests/device/fake_device.h"
#include "tests/session/steps.h"

// A device whose work does not end, because a stream waits for a library that
// waits for a dead rank.
namespace gradientflow::testing {
namespace {

class StuckDevice : public ::testing::TestWithParam<Over> {};

TEST_P(StuckDevice, KeepsNeitherTheStepNorTheSessionFromEnding) {
  Job job;
  job.over = GetParam();
  job.size = 2;
  job.tensors = SomeTensors();
  // The ranks wait for the device as long, several times over.
  job.options.timeout_seconds = 3;
  std::barrier<> stepped(job.size);
  ::testing::internal::CaptureStderr();
  OpenRanks(job, [&](int rank, Opened opened) {
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    std::unique_ptr<GradientSession> session = std::move(opened).value();
    ProduceAll(*session, 0);
    FinishAndCheck(*session, 0);
    stepped.arrive_and_wait();
    if (rank == 0) {
      session->communicator().Abort(
          Status(StatusCode::kAborted, "the disk is full"));
      return;
    }
    FakeDevice& device = *DeviceOfThisRank();
    device.HoldStreams();
    ProduceAll(*session, 1);
    const Result<StepStats> stats = session->FinishStep();
    ASSERT_FALSE(stats.ok());
    EXPECT_NE(stats.status().message().find("the disk is full"),
              std::string::npos)
        << stats.status().ToString();
    // The work that is held may still write to it.
    const BufferView pool = session->pool();
    session.reset();
    EXPECT_TRUE(device.Owns(pool.data));
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("a pool of "), std::string::npos) << log;
  EXPECT_NE(log.find(" is left behind"), std::string::npos) << log;
}

INSTANTIATE_TEST_SUITE_P(Over, StuckDevice,
                         ::testing::Values(Over::kDevices, Over::kSomeDevices,
                                           Over::kNccl),
                         [](const auto& over) {
                           return std::string(OverName(over.param));
                         });

}  // namespace
}  // namespace gradientflow::testing
