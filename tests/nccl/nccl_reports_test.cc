#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"

// What NCCL is told of memory, and what people are told of calls.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kElements = 1000;

CollectiveCall Allreduce(const DeviceMemory& memory, std::size_t count) {
  CollectiveCall call;
  call.output = memory.get();
  call.count = count;
  return call;
}

TEST(NcclReports, MemoryIsRegisteredWithBothChannelsAndGivenBack) {
  FakeNccl nccl;
  NcclJob job;
  job.nccl = &nccl;
  job.adjust = [](int, NcclArgs* args) {
    args->staging_bytes = 1;
    args->windows = false;
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    EXPECT_EQ(nccl.Get(FakeNcclCount::kRegistered), kChannels);  // Staging.
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, 0, kElements, 1));
    EXPECT_TRUE(self.collective.Register(memory.get(), kElements * 4).ok());
    EXPECT_EQ(nccl.Get(FakeNcclCount::kRegistered), 2 * kChannels);
    Outcome outcome;
    self.collective.Start(Allreduce(memory, kElements), outcome.done());
    EXPECT_EQ(self.collective.Register(memory.get(), 4).code(),
              StatusCode::kFailedPrecondition);
    self.PollUntil(outcome);
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kDeregistered), 2 * kChannels);
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMisuses), 0);
}

TEST(NcclReports, LibraryWithoutRegistrationWorksAsWell) {
  FakeNccl nccl(kNoRegisterPath);
  NcclJob job;
  job.nccl = &nccl;
  job.size = 2;
  RunNcclRanks(job, [&](NcclRank& self) {
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, 0, kElements, 1));
    EXPECT_TRUE(self.collective.Register(memory.get(), kElements * 4).ok());
    CollectiveCall call = Allreduce(memory, kElements);
    call.wire = DType::kFloat16;
    EXPECT_TRUE(self.Run(call).status.ok());
  });
  EXPECT_EQ(nccl.Get(FakeNcclCount::kRegistered), 0);
  EXPECT_EQ(nccl.Get(FakeNcclCount::kDeregistered), 0);
}

class Lines final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, const std::string& line) override {
    lines.push_back(line);
  }
  std::vector<std::string> lines;
};

class Spans final : public Recorder {
 public:
  void Record(const Span& span) noexcept override { spans.push_back(span); }
  std::vector<Span> spans;
};

TEST(NcclReports, TracesAndSpansAreTheExecutors) {
  FakeNccl nccl;
  Lines logger;
  Spans recorder;
  ManualClock clock;
  NcclJob job;
  job.nccl = &nccl;
  job.adjust = [&](int, NcclArgs* args) {
    args->logger = &logger;
    args->recorder = &recorder;
    args->clock = &clock;
    args->trace = true;
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    const DeviceMemory memory =
        self.Upload(NcclInput(DType::kFloat32, 0, kElements, 1));
    CollectiveCall call = Allreduce(memory, 100);
    call.op = ReduceOp::kMean;
    call.step = 4;
    call.bucket = 2;
    self.Run(call);
    call.wire = DType::kFloat16;
    Outcome outcome;
    self.device.HoldStreams();
    self.collective.Start(call, outcome.done());
    clock.Advance(std::chrono::milliseconds(3));
    self.device.ReleaseStreams();
    self.PollUntil(outcome);
    EXPECT_EQ(self.collective.bytes_sent(0, call.channel), 0U);  // Alone.
  });
  ASSERT_EQ(logger.lines.size(), 3U);
  EXPECT_NE(logger.lines[0].find("NCCL 2.28.9"), std::string::npos);
  EXPECT_EQ(logger.lines[1],
            "allreduce #1 step 4 bucket 2: 100 float32, 400 bytes, 1 segments, "
            "nccl (avg), 0 ms");
  EXPECT_EQ(logger.lines[2],
            "allreduce #2 step 4 bucket 2: 100 float32 as float16, 200 bytes, "
            "1 segments, nccl (sum, staged), 3 ms");
  ASSERT_EQ(recorder.spans.size(), 2U);
  EXPECT_EQ(recorder.spans[1].lane, "collective");
  EXPECT_EQ(recorder.spans[1].name, "allreduce");
  EXPECT_EQ(recorder.spans[1].step, 4U);
  EXPECT_EQ(recorder.spans[1].id, 2U);
  EXPECT_EQ(recorder.spans[1].bytes, 200U);
  EXPECT_EQ(recorder.spans[1].end - recorder.spans[1].begin,
            std::chrono::milliseconds(3));
}

}  // namespace
}  // namespace gradientflow::testing
