#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "gradientflow/collectives/collective.h"
#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"

// Faults of ranks that live: each must be distinguished from a death.
namespace gradientflow::faults {
namespace {

class Scenarios : public ::testing::TestWithParam<std::string> {
 protected:
  Scenarios() {
    job_.fabric = GetParam();
    job_.options.rendezvous = folder_.url();
    job_.options.join_timeout_seconds = 20;
  }
  Result<std::unique_ptr<GradientSession>> Open(int rank) const {
    return GradientSession::Open(OptionsOf(job_, rank), TensorsOf(job_));
  }

  const Folder folder_;
  JobConfig job_;
};

TEST_P(Scenarios, LeavingInTheMiddleOfTheJobIsSaidToBeThat) {
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    if (rank != 2) return Train(job_, rank, &board[rank]);
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.value().get(), &board[2]));
    return TrainStep(job_, 1, session.value().get(), &board[2]);
  });
  ranks.ExpectSuccess(2, 30);
  int in_the_next_step = 0;
  for (int r : {0, 1}) {
    // The verdict of a rank that is ahead may come before the end of step 1.
    ranks.ExpectError(r, 3, StatusCode::kUnavailable, {"step ", "rank 2 "});
    // The scheduler decides which news comes first: that the rank has closed
    // its session, or that it is gone.
    const std::string text = ranks[r].text;
    if (text.find("step 2") != std::string::npos) ++in_the_next_step;
    EXPECT_TRUE(text.find("has left the job") != std::string::npos ||
                text.find("has closed its session after 2 steps") !=
                    std::string::npos)
        << text;
  }
  EXPECT_GE(in_the_next_step, 1);
}

TEST_P(Scenarios, RankThatDoesNotComeIsNamedWithTheTensorsAwaited) {
  job_.options.timeout_seconds = 2;
  const int warnings = memfd_create("stderr", MFD_CLOEXEC);
  ASSERT_GE(warnings, 0);
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    if (rank == 0) dup2(warnings, STDERR_FILENO);
    Options options = OptionsOf(job_, rank);
    options.log_level = LogLevel::kWarning;
    options.stall_check_seconds = 0.7;
    auto session = GradientSession::Open(options, TensorsOf(job_));
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.value().get(), &board[rank]));
    if (rank == 1) {
      // Stays in backward until the others have given up.
      session.value()->GradientReady(4);
      Eventually([&] { return board[0].ended_ns.load() != 0; }, 20);
      CollectiveCall barrier;
      barrier.kind = CollectiveKind::kBarrier;
      return session.value()->communicator().Run(barrier);
    }
    return TrainStep(job_, 1, session.value().get(), &board[rank]);
  });
  for (int r : {0, 2}) {
    ranks.ExpectError(r, 30, StatusCode::kDeadlineExceeded,
                      {"step 1", "rank 1 (", "4 of 5 tensors awaited",
                       "layer3, layer2, layer1, layer0"});
  }
  // The late rank gets the reason why the job has ended.
  ranks.ExpectError(1, 5, StatusCode::kDeadlineExceeded, {"rank 1 ("});
  std::string said(16384, '\0');
  said.resize(static_cast<std::size_t>(
      std::max<ssize_t>(0, pread(warnings, said.data(), said.size(), 0))));
  close(warnings);
  EXPECT_NE(said.find("stall: rank 0 has waited"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 ("), std::string::npos) << said;
  EXPECT_NE(said.find("layer3"), std::string::npos) << said;
}

TEST_P(Scenarios, StopShorterThanTheTimeOutDisturbsNoOne) {
  job_.options.heartbeat_timeout_seconds = 3;
  Scenario ranks(3, [&](int rank, Board& board) {
    return Train(job_, rank, &board[rank]);
  });
  ASSERT_TRUE(Eventually(
      [&] {
        return ranks[1].phase.load() > Phase::kOpening &&
               ranks[1].step.load() >= 1;
      },
      30));
  ranks.processes().Signal(1, SIGSTOP);
  Pause(std::chrono::milliseconds(1000));
  ranks.processes().Signal(1, SIGCONT);
  for (int r = 0; r < 3; ++r) ranks.ExpectSuccess(r, 30);
}

TEST_P(Scenarios, StopBehindMessagesThatNobodyReceivesIsSeen) {
  job_.ranks = 2;
  const std::vector<char> data(20000);
  constexpr int kMessages = 4000;  // More than a rank holds of such.
  Scenario ranks(2, [&](int rank, Board& board) -> Status {
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    if (rank == 0) {
      char byte = 0;
      return session.value()->communicator().Recv(1, 2, &byte, 1);
    }
    for (int i = 0; i < kMessages; ++i) {
      Communicator::Message message;
      message.tag = 1;
      const auto started = session.value()->communicator().StartSend(
          message, data.data(), data.size(), [](const Status&) {});
      GF_RETURN_IF_ERROR(started.status());
    }
    board[1].step.store(1);
    char byte = 0;
    return session.value()->communicator().Recv(0, 2, &byte, 1);
  });
  ASSERT_TRUE(Eventually([&] { return ranks[1].step.load() == 1; }, 30));
  Pause(std::chrono::milliseconds(500));
  ranks.processes().Signal(1, SIGSTOP);
  ranks.ExpectError(
      0, job_.options.heartbeat_timeout_seconds + 1,
      StatusCode::kDeadlineExceeded,
      {"rank 1 (", "silent", "in 1 sends and receives of messages"});
  ranks.processes().Signal(1, SIGCONT);
  ASSERT_TRUE(ranks.EndsWithin(1, 10));
}

TEST_P(Scenarios, AbortReachesAllRanksWithItsText) {
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (rank == 0 && step == 2) {
        session.value()->communicator().Abort(
            Status(StatusCode::kAborted, "the loss is not a number"));
      }
      GF_RETURN_IF_ERROR(
          TrainStep(job_, step, session.value().get(), &board[rank]));
    }
    return Status();
  });
  for (int r = 0; r < 3; ++r) {
    ranks.ExpectError(
        r, 30, StatusCode::kAborted,
        {"step ", "rank 0 gave the job up: the loss is not a number"});
  }
}

TEST_P(Scenarios, ResumedAfterTheOthersGaveUpIsAnErrorToo) {
  Scenario ranks(3, [&](int rank, Board& board) {
    return Train(job_, rank, &board[rank]);
  });
  ASSERT_TRUE(Eventually(
      [&] { return ranks[2].phase.load() >= Phase::kFinishing; }, 30));
  ranks.processes().Signal(2, SIGSTOP);
  for (int r : {0, 1}) {
    ranks.ExpectError(r, 10, StatusCode::kDeadlineExceeded,
                      {"rank 2 (", "silent"});
  }
  ranks.processes().Signal(2, SIGCONT);
  ASSERT_TRUE(ranks.EndsWithin(2, 10));
  EXPECT_NE(ranks[2].code.load(), StatusCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Scenarios,
                         ::testing::Values("tcp", "shm", "mixed"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace gradientflow::faults
