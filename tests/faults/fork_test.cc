#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/collectives/collective.h"
#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"

// Ranks that fork: neither the actions nor the life of a child affects a rank.
namespace {
bool in_child = false;
}  // namespace

// Asked by the leak checker at the end of a process. A child has what other
// threads of its parent held at the fork, but not their stacks, from which it
// is reachable.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __lsan_is_turned_off() { return in_child ? 1 : 0; }

namespace gradientflow::faults {
namespace {

constexpr double kPatience = 30;

class Forks : public ::testing::TestWithParam<std::string> {
 protected:
  Forks() {
    job_.fabric = GetParam();
    job_.options.rendezvous = folder_.url();
    job_.options.join_timeout_seconds = 20;
    // A rank that takes this long has not noticed the death.
    job_.options.heartbeat_timeout_seconds = 25;
  }
  Result<std::unique_ptr<GradientSession>> Open(int rank) const {
    return GradientSession::Open(OptionsOf(job_, rank), TensorsOf(job_));
  }

  const Folder folder_;
  JobConfig job_;
};

// Forks `child`, which must not return; OK once it has exited with 0.
Status Fork(const std::function<void()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    in_child = true;
    ::alarm(static_cast<unsigned>(kPatience));  // A hang is a failure.
    child();
    ::_exit(1);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  if (status == 0) return Status();
  return Status(StatusCode::kInternal,
                "the child ended with " + std::to_string(status));
}

// Ends the child with a message, unless `fine`.
void Require(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "child: not so: %s\n", what);
  ::_exit(1);
}

void ExpectRefusal(const Status& status, const char* call) {
  const bool fine = status.code() == StatusCode::kFailedPrecondition &&
                    status.message().find("is a fork") != std::string::npos;
  if (!fine) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  Require(fine, call);
}

// Everything that a child may try, with memory that other ranks reduce from.
void Misuse(GradientSession& session) {
  const BufferView pool = session.pool();
  Require(session.forked() && session.size() > 1, "it is a fork");
  std::fill(pool.data, pool.data + pool.bytes, std::byte{0x55});
  for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
  session.GradientAbsent(0);
  ExpectRefusal(session.SetLossScale(-1), "SetLossScale()");
  ExpectRefusal(session.SetStream(nullptr), "SetStream()");
  session.communicator().FreeShared(pool);
  session.communicator().Abort(Status(StatusCode::kAborted, "said a child"));
  ExpectRefusal(session.FinishStep().status(), "FinishStep()");
  std::vector<float> data(1000, 1);
  CollectiveCall call;
  call.output = data.data();
  call.count = data.size();
  ExpectRefusal(session.communicator().Run(call), "Run()");
  ExpectRefusal(session.communicator().Start(call).status(), "Start()");
  ExpectRefusal(
      session.communicator().Start(call, [](const Status&) {}).status(),
      "StartThen()");
  ExpectRefusal(session.communicator().Wait(1), "Wait()");
  ExpectRefusal(session.communicator().Wait(1, -1), "Await()");
  ExpectRefusal(session.communicator().Send(0, 1, data.data(), 4), "Send()");
  ExpectRefusal(session.communicator().Recv(0, 1, data.data(), 4), "Recv()");
  ExpectRefusal(session.communicator().OpenGroup(1, {0, 1}), "OpenGroup()");
  ExpectRefusal(session.communicator().CloseGroup(1), "CloseGroup()");
  ExpectRefusal(session.OptimizerStep({}, {}), "OptimizerStep()");
  ExpectRefusal(session.ZeroGradients(), "ZeroGradients()");
  ExpectRefusal(session.SaveState().status(), "SaveState()");
  ExpectRefusal(session.RestoreState({}), "RestoreState()");
  ExpectRefusal(session.communicator().AllocateShared(8).status(),
                "AllocateShared()");
  ExpectRefusal(session.communicator().Check(), "Check()");
}

TEST_P(Forks, DeathIsSeenAtOnceWhileAForkOfTheDeadLives) {
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.value().get(), &board[rank]));
    if (rank == 2) {
      if (::fork() == 0) {
        Eventually(
            [&] {
              return board[0].ended_ns.load() != 0 &&
                     board[1].ended_ns.load() != 0;
            },
            kPatience);
        ::_exit(0);
      }
      board[2].step.store(77);
      Pause(std::chrono::seconds(60));
    }
    return TrainStep(job_, 1, session.value().get(), &board[rank]);
  });
  ASSERT_TRUE(
      Eventually([&] { return ranks[2].step.load() == 77; }, kPatience));
  const std::int64_t killed = NowNs();
  ranks.processes().Signal(2, SIGKILL);
  for (int r : {0, 1}) {
    ranks.ExpectError(r, 10, StatusCode::kUnavailable, {"rank 2 ("});
    EXPECT_LT(ranks[r].ended_ns.load() - killed, 2'000'000'000) << "rank " << r;
  }
}

TEST_P(Forks, WhateverAChildDoesSumsStayRight) {
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto opened = Open(rank);
    if (!opened.ok()) return opened.status();
    std::unique_ptr<GradientSession> session = std::move(opened).value();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.get(), &board[rank]));
    for (std::uint64_t step = 1; step < 4; ++step) {
      Backward(job_, step, session.get(), &board[rank]);
      // The other ranks are in the middle of this step, and so is this rank's
      // progress thread.
      GF_RETURN_IF_ERROR(Fork([&] {
        Misuse(*session);
        if (step == 1) session.reset();
        // Runs atexit functions and destroys static objects.
        if (step == 2) std::exit(0);
        ::_exit(0);
      }));
      const Result<StepStats> stats = session->FinishStep();
      if (!stats.ok()) return stats.status();
      board[rank].wrong_sums.fetch_add(CountWrong(job_, step, *session));
    }
    return Status();
  });
  for (int r = 0; r < 3; ++r) ranks.ExpectSuccess(r, kPatience);
}

TEST_P(Forks, ChildReadsTheGradientsOfTheStepBefore) {
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.value().get(), &board[rank]));
    return Fork([&] {
      Require(CountWrong(job_, 0, *session.value()) == 0, "sums are there");
      ::_exit(0);
    });
  });
  for (int r = 0; r < 3; ++r) ranks.ExpectSuccess(r, kPatience);
}

TEST_P(Forks, ChildrenOpenAJobOfTheirOwn) {
  const Folder elsewhere;
  JobConfig theirs = job_;
  theirs.options.rendezvous = elsewhere.url();
  theirs.steps = 2;
  Board reports(3);
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto session = Open(rank);
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job_, 0, session.value().get(), &board[rank]));
    GF_RETURN_IF_ERROR(Fork([&] {
      const Status trained = Train(theirs, rank, &reports[rank]);
      if (!trained.ok()) {
        std::fprintf(stderr, "%s\n", trained.ToString().c_str());
      }
      Require(trained.ok() && reports[rank].wrong_sums.load() == 0, "trained");
      ::_exit(0);
    }));
    return TrainStep(job_, 1, session.value().get(), &board[rank]);
  });
  for (int r = 0; r < 3; ++r) ranks.ExpectSuccess(r, kPatience);
}

// Threads that share passes exist in the parent only.
TEST(ForksOfOneRank, LeaveThePassesThreadsAlone) {
  Options options = OptionsOf(JobConfig(), 0);
  options.size = 1;
  options.sparsity = 0.5F;
  options.compute_threads = 3;
  auto opened = GradientSession::Open(options, {{"a", 300000}});
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  std::unique_ptr<GradientSession> session = std::move(opened).value();
  std::vector<float> weights(300000);
  for (int step = 0; step < 4; ++step) {
    session->GradientReady(0);
    ASSERT_TRUE(session->FinishStep().ok());
    ASSERT_TRUE(session->OptimizerStep({}, {weights.data()}).ok());
    const Status child = Fork([&] {
      session->GradientReady(0);
      ExpectRefusal(session->FinishStep().status(), "FinishStep()");
      session.reset();
      std::exit(0);
    });
    EXPECT_TRUE(child.ok()) << child.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Forks,
                         ::testing::Values("tcp", "shm", "mixed"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace gradientflow::faults
