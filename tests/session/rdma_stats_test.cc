#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_layout.h"
#include "tests/session/steps.h"

// What RDMA links have written, as users see it: in the statistics of a step
// and in the trace of collectives.
namespace gradientflow::testing {
namespace {

constexpr int kRanks = 3;
constexpr std::uint64_t kPeers = kRanks - 1;
constexpr std::size_t kElements = 3000;

// One tensor, and so one bucket of one segment.
Job PlacedJob() {
  Job job;
  job.size = kRanks;
  job.over = Over::kRdma;
  job.tensors = {{"weight", kElements}};
  job.options.algorithm = "gdraa";
  return job;
}

TEST(RdmaStats, AStepOfPlacedMessagesWritesDataAndNothingElse) {
  RunRanks(PlacedJob(), [](GradientSession& session) {
    for (int step = 0; step < 5; ++step) {
      ProduceAll(session, step);
      const StepStats stats = FinishAndCheck(session, step);
      ASSERT_TRUE(stats.rdma.has_value());
      // The ranks have told each other that the session is open.
      if (step == 0) continue;
      EXPECT_EQ(stats.rdma->data, 2 * kPeers);
      EXPECT_EQ(stats.rdma->control, 0U);
      EXPECT_EQ(stats.rdma->bytes,
                stats.bytes_sent + kPeers * kPlacedHeaderBytes);
      EXPECT_EQ(stats.rdma->retries, std::nullopt) << "fake cards count none";
    }
  });
}

// The ranks are divided among two groups, which have a session each.
TEST(RdmaStats, GradientsOfGroupsArePlacedAsWell) {
  Job job = PlacedJob();
  job.size = 4;
  RunRanks(job, [](GradientSession& all) {
    Communicator& comm = all.communicator();
    const int half = all.rank() % 2;
    const auto id = static_cast<GroupId>(1 + half);
    ASSERT_TRUE(comm.OpenGroup(id, {2 + half, half}).ok());
    for (int again = 0; again < 3; ++again) {
      auto session =
          GradientSession::Open(comm.shared_from_this(), PlacedJob().tensors,
                                all.options(), id)
              .value();
      for (int step = 0; step < 4; ++step) {
        ProduceAll(*session, step);
        const StepStats stats = FinishAndCheck(*session, step);
        if (step == 0) continue;
        EXPECT_EQ(stats.rdma->data, 2U);
        EXPECT_EQ(stats.rdma->control, 0U);
        EXPECT_EQ(stats.rdma->bytes, stats.bytes_sent + kPlacedHeaderBytes);
      }
    }
    EXPECT_TRUE(comm.CloseGroup(id).ok());
  });
}

TEST(RdmaStats, AStepOfLongMessagesAsksForPlaces) {
  Job job = PlacedJob();
  job.options.algorithm = "ring";
  job.tensors = {{"weight", 40000}};
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ProduceAll(session, step);
      const StepStats stats = FinishAndCheck(session, step);
      EXPECT_GE(stats.rdma->data, 2 * kPeers);
      EXPECT_GE(stats.rdma->control, 2 * kPeers) << "a request, a grant";
      EXPECT_GE(stats.rdma->bytes, stats.bytes_sent);
    }
  });
}

TEST(RdmaStats, AreMissingWithoutRdmaLinks) {
  Job job = PlacedJob();
  job.over = Over::kTcp;
  job.options.algorithm = "auto";
  RunRanks(job, [](GradientSession& session) {
    ProduceAll(session, 0);
    EXPECT_FALSE(FinishAndCheck(session, 0).rdma.has_value());
  });
}

TEST(RdmaStats, AreInTheTraceOfACollective) {
  Job job = PlacedJob();
  job.options.trace_collectives = true;
  job.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  RunRanks(job, [](GradientSession& session) {
    ProduceAll(session, 0);
    FinishAndCheck(session, 0);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line =
      StrCat("gdraa (the session's), RDMA meanwhile: ", 2 * kPeers,
             " data writes, 0 control writes, ");
  EXPECT_NE(log.find(line), std::string::npos) << log;
}

}  // namespace
}  // namespace gradientflow::testing
