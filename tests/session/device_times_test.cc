#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gradientflow/planner/profile.h"
#include "gradientflow/planner/text_file.h"
#include "tests/session/steps.h"

// What a session says of its times with the pool on a device whose clock is the
// test's: the host's own times are not in it.
namespace gradientflow::testing {
namespace {

constexpr double kWork = 0.25;     // Each piece of work that is not backward's.
constexpr double kBackward = 2.0;  // A tensor.
constexpr std::size_t kTensors = 4;
// Each is a section of the pool and a bucket.
constexpr std::size_t kElements = std::size_t{128} << 10;

Job MakeJob(Over over, float sparsity) {
  Job job;
  job.over = over;
  job.size = 2;
  job.work_seconds = kWork;
  for (std::size_t i = 0; i < kTensors; ++i) {
    job.tensors.push_back({"weight" + std::to_string(i), kElements});
  }
  job.options.sparsity = sparsity;
  job.options.chunk_elements = kElements / 4;
  job.options.bucket_bytes = kElements * sizeof(float) - 1;
  return job;
}

void Backward(GradientSession& session, double seconds = kBackward) {
  Stream& stream = *StreamOfThisRank();
  DeviceOfThisRank()->SetWorkSeconds(&stream, seconds);
  for (std::size_t i = session.tensors(); i-- > 0;) {
    const BufferView gradient = session.gradient(i);
    ASSERT_TRUE(stream.Fill(gradient.data, 0, gradient.bytes).ok());
    session.GradientReady(i);
  }
}

// A bucket is on the wire for a sum and a search for infinities; the last
// thing of a step is a copy of what was found.
void ExpectDense(const StepStats& stats) {
  EXPECT_EQ(stats.buckets, kTensors);
  EXPECT_DOUBLE_EQ(stats.backward_seconds, (kTensors - 1) * kBackward);
  EXPECT_DOUBLE_EQ(stats.hidden_seconds, (kTensors - 1) * 2 * kWork);
  EXPECT_DOUBLE_EQ(stats.exposed_seconds, 2 * kWork + kWork);
}

TEST(DeviceTimes, OfDenseStepsAreTheDevices) {
  RunRanks(MakeJob(Over::kNccl, 0), [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      Backward(session);
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      ExpectDense(stats.value());
    }
  });
}

// Four buckets that are there at once. P packs, T is on the wire, U unpacks; a
// bucket has the memory of the bucket before the last. One after the other they
// would take twelve units.
//
//   P0 P1 .. P2 P3
//      T0 T1 .. T2 T3
//         U0 U1 .. U2 U3, then what was found is copied
TEST(DeviceTimes, OfConversionsHideBehindTransfers) {
  Job job = MakeJob(Over::kNccl, 0);
  job.options.wire_dtype = DType::kFloat16;
  job.options.bucket_bytes = kElements * sizeof(std::uint16_t) - 1;
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      DeviceOfThisRank()->SetTime(100.0 * (step + 1));
      Backward(session, 0);
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      EXPECT_DOUBLE_EQ(stats.value().backward_seconds, 0);
      EXPECT_DOUBLE_EQ(stats.value().hidden_seconds, 0);
      EXPECT_DOUBLE_EQ(stats.value().exposed_seconds, (7 + 1) * kWork);
    }
  });
}

TEST(DeviceTimes, OfStepsThatWereLeftComeWithTheirResult) {
  RunRanks(MakeJob(Over::kNccl, 0), [](GradientSession& session) {
    for (int step = 0; step < 5; ++step) {
      Backward(session);
      const Result<AsyncStep> left = session.FinishStepAsync();
      ASSERT_TRUE(left.ok()) << left.status().ToString();
      ASSERT_EQ(left.value().known.has_value(), step > 0);
      if (step > 0) ExpectDense(*left.value().known);
      ASSERT_TRUE(StreamOfThisRank()->Synchronize().ok());
    }
  });
}

// The host submits backward in no time, and goes on after the step's end.
TEST(DeviceTimes, OfProfilesAreTheDevices) {
  Job job = MakeJob(Over::kNccl, 0);
  job.options.profile = ::testing::TempDir() + "/device_profile.json";
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 7; ++step) {
      Backward(session);
      ASSERT_TRUE(session.FinishStep().ok());
    }
  });
  const auto text = planner::ReadTextFile(job.options.profile);
  ASSERT_TRUE(text.ok()) << text.status().message();
  std::remove(job.options.profile.c_str());
  const auto profile = planner::ParseProfile(text.value());
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  const double backward = (kTensors - 1) * kBackward;
  EXPECT_NEAR(profile.value().backward_seconds.median, backward, 1e-5);
  EXPECT_NEAR(profile.value().wait_seconds.median, 3 * kWork, 1e-5);
  ASSERT_EQ(profile.value().tensors.size(), kTensors);
  EXPECT_NEAR(profile.value().tensors.back().ready_seconds.median, backward,
              1e-5);
}

// All chunks are sent in the first step. A bucket takes a pass before the wire
// and a sum; after the last one come the norms' sum and the selection.
TEST(DeviceTimes, OfSparseStepsAreTheDevices) {
  RunRanks(MakeJob(Over::kNccl, 0.5F), [](GradientSession& session) {
    Backward(session);
    const Result<StepStats> stats = session.FinishStep();
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_EQ(stats.value().buckets, kTensors);
    EXPECT_DOUBLE_EQ(stats.value().backward_seconds,
                     (kTensors - 1) * kBackward);
    EXPECT_DOUBLE_EQ(stats.value().hidden_seconds, (kTensors - 1) * 2 * kWork);
    EXPECT_GE(stats.value().exposed_seconds, 5 * kWork);
    EXPECT_LT(stats.value().exposed_seconds, kBackward * kTensors);
  });
}

TEST(DeviceTimes, OfStagedStepsHaveTheDevicesBackward) {
  RunRanks(MakeJob(Over::kDevices, 0), [](GradientSession& session) {
    for (int step = 0; step < 2; ++step) {
      Backward(session);
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      EXPECT_DOUBLE_EQ(stats.value().backward_seconds,
                       (kTensors - 1) * kBackward);
      // These are the host's, which moves the bytes.
      EXPECT_GE(stats.value().exposed_seconds, 0);
      EXPECT_LT(stats.value().exposed_seconds + stats.value().hidden_seconds,
                60);
    }
  });
}

// The sum and the search for infinities, as the device's clock has them.
TEST(DeviceTimes, OfAnAllreduceAreMeasuredOnTheDevice) {
  Job job = MakeJob(Over::kNccl, 0);
  job.options.bucket_bytes = kAutoBytes;
  job.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  RunRanks(job, [](GradientSession&) {});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("measured allreduce on fake:0: latency 500000 us"),
            std::string::npos)
      << log;
}

// One rank's series of calls breaks off while calls of it are in flight.
TEST(DeviceTimes, OfAnAllreduceThatCannotBeTakenEndTheJobOnAllRanks) {
  for (const std::uint64_t nth : {0U, 1U, 2U, 5U}) {
    CommJob job = MakeJob(Over::kNccl, 0);
    job.options.bucket_bytes = kAutoBytes;
    RunRanks(job, [&](Communicator& comm) {
      if (comm.rank() == 1) {
        DeviceOfThisRank()->FailCall(
            FakeCall::kRecord, nth,
            Status(StatusCode::kInternal, "a broken event"));
      }
      const auto opened =
          GradientSession::Open(comm.shared_from_this(),
                                MakeJob(Over::kNccl, 0).tensors, job.options);
      ASSERT_FALSE(opened.ok());
      EXPECT_NE(opened.status().message().find("a broken event"),
                std::string::npos)
          << opened.status().ToString();
    });
  }
}

TEST(DeviceTimes, OfAStagedAllreduceAreMeasuredOnDeviceMemory) {
  Job job = MakeJob(Over::kDevices, 0);
  job.options.bucket_bytes = kAutoBytes;
  job.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  RunRanks(job, [](GradientSession& session) {
    if (session.rank() > 0) return;
    // Seven calls of 4 KiB and five of 2 MiB, each there and back.
    EXPECT_GE(DeviceOfThisRank()->bus_bytes(), std::uint64_t{5 * 2} << 21);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("measured allreduce on fake:0"), std::string::npos) << log;
}

}  // namespace
}  // namespace gradientflow::testing
