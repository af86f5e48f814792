#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <latch>
#include <string>

#include "tests/nccl/nccl_ranks.h"
#include "tests/session/steps.h"

// A session on a device in which one call, whichever it is, fails or never
// ends, or from which a rank goes in the middle of a step: the steps of all
// ranks end, with the right gradients or with a reason, and so does the
// session.
namespace gradientflow::testing {
namespace {

struct Mode {
  const char* name;
  Over over;
  float sparsity;
  bool ahead;  // Steps end by FinishStepAsync().
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }
constexpr Mode kModes[] = {{"StagedDense", Over::kDevices, 0, false},
                           {"StagedSparse", Over::kDevices, 0.7F, false},
                           {"NcclDense", Over::kNccl, 0, false},
                           {"NcclSparse", Over::kNccl, 0.7F, false},
                           {"NcclDenseAhead", Over::kNccl, 0, true},
                           {"NcclSparseAhead", Over::kNccl, 0.7F, true}};

constexpr int kSteps = 4;  // The trouble comes after the first.

class DeviceTrouble : public ::testing::TestWithParam<Mode> {
 protected:
  static Job MakeJob() {
    Job job;
    job.over = GetParam().over;
    job.size = 2;
    job.tensors = {{"a", 2000}, {"b", 300}, {"c", 5000}, {"d", 7}};
    job.options.sparsity = GetParam().sparsity;
    job.options.wire_dtype = DType::kFloat16;
    job.options.chunk_elements = 500;
    job.options.bucket_bytes = 4096;
    // A rank whose call fails waits a tenth of this for another to say why.
    job.options.timeout_seconds = 5;
    return job;
  }

  // How one more step has ended on this rank.
  static Status Step(GradientSession& session, int step) {
    ProduceAll(session, step);
    if (!GetParam().ahead) return session.FinishStep().status();
    const Status status = session.FinishStepAsync().status();
    // The call that is planned to fail may be the test's own.
    if (!StreamOfThisRank()->Synchronize().ok()) {
      static_cast<void>(StreamOfThisRank()->Synchronize());
    }
    return status;
  }

  // Takes steps until one fails, and expects that its error says `text`.
  static void ExpectEnd(GradientSession& session, const char* text) {
    Status status;
    for (int step = 1; step < kSteps && status.ok(); ++step) {
      status = Step(session, step);
    }
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(text), std::string::npos)
        << status.ToString();
  }

  // Whether all ranks have come so far.
  static Status Meet(GradientSession& session) {
    ProduceAll(session, kSteps);
    GF_RETURN_IF_ERROR(session.FinishStep().status());
    CollectiveCall barrier;
    barrier.kind = CollectiveKind::kBarrier;
    return session.communicator().Run(barrier);
  }

  // On each rank, calls `trouble` after the first step and then takes more
  // steps. Returns whether that ended the job; then each rank has an error.
  template <typename Trouble>
  static bool FailsBy(const Job& job, Trouble trouble) {
    std::atomic<int> failed = 0;
    std::latch stepped(job.size);
    std::latch made(job.size);
    RunRanks(job, [&](GradientSession& session) {
      Status status = Step(session, 0);
      EXPECT_TRUE(status.ok()) << status.ToString();
      stepped.arrive_and_wait();
      trouble(session);
      made.arrive_and_wait();
      for (int step = 1; step < kSteps && status.ok(); ++step) {
        status = Step(session, step);
      }
      if (status.ok()) status = Meet(session);
      if (status.ok()) return;
      ++failed;
      EXPECT_FALSE(status.message().empty());
      EXPECT_FALSE(session.FinishStep().ok());
      EXPECT_FALSE(session.SaveState().ok());
    });
    EXPECT_TRUE(failed == 0 || failed == job.size) << failed << " ranks failed";
    return failed > 0;
  }
};

TEST_P(DeviceTrouble, AnyCallOfTheDeviceThatFails) {
  constexpr std::uint64_t kMost = 4000;
  std::uint64_t nth = 0;
  int failures = 0;
  std::uint64_t quiet = 0;  // Calls in a row whose failure did no harm.
  for (; nth < kMost && quiet < 8; nth += 1 + nth / 4) {
    const bool failed = FailsBy(MakeJob(), [nth](GradientSession& session) {
      if (session.rank() != 1) return;
      DeviceOfThisRank()->FailCall(
          FakeCall::kAny, nth, Status(StatusCode::kInternal, "out of luck"));
    });
    if (HasFailure()) FAIL() << "call " << nth;
    failures += failed ? 1 : 0;
    quiet = failed ? 0 : quiet + 1;
  }
  EXPECT_GT(failures, 4);
  EXPECT_LT(nth, kMost) << "later calls may fail, too";
}

// Half of the step, and then the end of the session: the rank's Close() waits
// for no one, and the other rank learns who has gone.
TEST_P(DeviceTrouble, ARankThatGoesInTheMiddleOfAStep) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    const Status status = Step(session, 0);
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (session.rank() == 1) {
      Produce(session, 3, 1);
      Produce(session, 2, 1);
      return;
    }
    ExpectEnd(session, "rank 1");
  });
}

TEST_P(DeviceTrouble, ARankThatAbortsInTheMiddleOfAStep) {
  std::latch stepped(2);
  RunRanks(MakeJob(), [&](GradientSession& session) {
    const Status status = Step(session, 0);
    stepped.arrive_and_wait();
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (session.rank() == 1) {
      Produce(session, 3, 1);
      session.communicator().Abort(
          Status(StatusCode::kAborted, "the disk is full"));
      EXPECT_FALSE(session.FinishStep().ok());
      return;
    }
    ExpectEnd(session, "the disk is full");
  });
}

// Nobody waits for the device: that is the session's own business.
TEST_P(DeviceTrouble, SessionsThatEndWhileTheDeviceIsAtWork) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    const auto release = DeviceOfThisRank()->HoldStream(StreamOfThisRank());
    ProduceAll(session, 0);
    if (GetParam().ahead) {
      EXPECT_TRUE(session.FinishStepAsync().ok());
    }
    release();
  });
}

// Only with NCCL.
class NcclTrouble : public DeviceTrouble {};

TEST_P(NcclTrouble, AnyCallOfNcclThatFails) {
  constexpr int kMost = 200;
  int nth = 1;
  int failures = 0;
  for (int quiet = 0; nth < kMost && quiet < 4; nth += 1 + nth / 4) {
    // The fake knows a rank by the thread that opened it; others count as 0.
    const bool failed = FailsBy(MakeJob(), [nth](GradientSession& session) {
      if (session.rank() == 0) NcclOfRanks()->Set(FakeNcclMode::kFailCall, nth);
    });
    if (HasFailure()) FAIL() << "call " << nth;
    failures += failed ? 1 : 0;
    quiet = failed ? 0 : quiet + 1;
  }
  EXPECT_GT(failures, 4);
  EXPECT_LT(nth, kMost) << "later calls may fail, too";
}

TEST_P(NcclTrouble, ACallOfNcclThatHangs) {
  for (const int nth : {1, 4}) {
    Job job = MakeJob();
    job.options.timeout_seconds = 3;
    EXPECT_TRUE(FailsBy(job, [nth](GradientSession& session) {
      if (session.rank() == 0) NcclOfRanks()->Set(FakeNcclMode::kHangCall, nth);
    }));
    if (HasFailure()) FAIL() << "call " << nth;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, NcclTrouble,
                         ::testing::ValuesIn(std::begin(kModes) + 2,
                                             std::end(kModes)),
                         [](const auto& mode) {
                           return std::string(mode.param.name);
                         });
INSTANTIATE_TEST_SUITE_P(Modes, DeviceTrouble, ::testing::ValuesIn(kModes),
                         [](const auto& mode) {
                           return std::string(mode.param.name);
                         });

}  // namespace
}  // namespace gradientflow::testing
