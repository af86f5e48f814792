#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/core.h"
#include "tests/session/steps.h"

// Several sessions on one communicator, and sessions of some of its ranks.
namespace gradientflow::testing {
namespace {

using Owned = std::unique_ptr<GradientSession>;

Owned OpenBeside(GradientSession& session, const Options& options,
                 GroupId group = 0) {
  std::shared_ptr<Communicator> comm =
      session.communicator().shared_from_this();
  Result<Owned> opened =
      GradientSession::Open(comm, SomeTensors(), options, group);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return opened.ok() ? std::move(opened).value() : nullptr;
}

// Ends a step of any number that was filled by ProduceAll(session, what).
void FinishAndExpect(GradientSession& session, int what) {
  const Result<StepStats> stats = session.FinishStep();
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  for (const std::size_t i : AllTensors(session)) {
    ExpectMean(session, i, what, [](int) { return true; });
  }
}

class Shared : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static Job MakeJob() {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.tensors = SomeTensors();
    return job;
  }
};

// Two models whose backward passes end in a different order on each rank.
TEST_P(Shared, SessionsStepInAnyOrder) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Options options = first.options();
    options.bucket_bytes = kAutoBytes;
    const Owned second = OpenBeside(first, options);
    options.bucket_bytes = 1;
    const Owned third = OpenBeside(first, options);
    ASSERT_TRUE(second != nullptr && third != nullptr);
    std::vector<GradientSession*> all = {&first, second.get(), third.get()};
    for (int step = 0; step < 12; ++step) {
      std::rotate(all.begin(), all.begin() + (first.rank() + step) % 3,
                  all.end());
      for (GradientSession* session : all) {
        ProduceAll(*session, step + static_cast<int>(session == &first));
      }
      for (GradientSession* session : all) {
        FinishAndExpect(*session, step + static_cast<int>(session == &first));
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// Calls in flight were planned with the costs of links. Those must not change
// when a session opens, whether an algorithm is named or not.
TEST_P(Shared, OpeningASessionChangesNoCostsOfCallsInFlight) {
  for (const char* algorithm : {"auto", "ring"}) {
    Job job = MakeJob();
    job.options.algorithm = algorithm;
    job.options.bucket_bytes = 4096;  // Measures nothing.
    RunRanks(job, [](GradientSession& first) {
      CommunicatorCore& core = first.communicator().core();
      const auto latency = [&] {
        double seconds = 0;
        core.progress().Do([&] {
          seconds = core.executor().costs().together.across.latency_seconds;
        });
        return seconds;
      };
      const double before = latency();
      const bool early = first.rank() % 2 == 0;
      if (early) ProduceAll(first, 0);
      Options options = first.options();
      options.bucket_bytes = kAutoBytes;
      const Owned second = OpenBeside(first, options);
      ASSERT_TRUE(second != nullptr);
      EXPECT_EQ(latency(), before);
      if (!early) ProduceAll(first, 0);
      FinishAndExpect(first, 0);
    });
  }
}

// A session counts only its own bytes.
TEST_P(Shared, SessionsCountTheirOwnBytes) {
  Job job = MakeJob();
  job.options.algorithm = "ring";  // Whatever is measured.
  RunRanks(job, [](GradientSession& first) {
    const Owned second = OpenBeside(first, first.options());
    ASSERT_TRUE(second != nullptr);
    ProduceAll(*second, 0);
    ProduceAll(first, 0);
    const Result<StepStats> one = first.FinishStep();
    const Result<StepStats> two = second->FinishStep();
    ASSERT_TRUE(one.ok() && two.ok());
    const double pool = static_cast<double>(first.pool().bytes);
    const int p = first.size();
    for (const StepStats& stats : {one.value(), two.value()}) {
      // A rank's share of 2 (p - 1) pools, give or take a block.
      EXPECT_NEAR(static_cast<double>(stats.bytes_sent), 2 * pool * (p - 1) / p,
                  pool);
      EXPECT_LE(stats.bytes_sent, 2 * pool);
    }
  });
}

TEST_P(Shared, SessionsSaveAndRestoreEachItsOwn) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Options options = first.options();
    options.sparsity = 0.5F;
    options.chunk_elements = 64;
    const Owned second = OpenBeside(first, options);
    ASSERT_TRUE(second != nullptr);
    for (int step = 0; step < 3; ++step) {
      ProduceAll(*second, step);
      ASSERT_TRUE(second->FinishStep().ok());
    }
    ProduceAll(first, 0);  // During the other session's step.
    const Result<std::vector<std::byte>> state = second->SaveState();
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    ProduceAll(*second, 3);
    ASSERT_TRUE(second->FinishStep().ok());
    const std::vector<float> expected(Floats(*second, 2).begin(),
                                      Floats(*second, 2).end());
    ASSERT_TRUE(second->RestoreState(state.value()).ok());
    ProduceAll(*second, 3);
    ASSERT_TRUE(second->FinishStep().ok());
    const std::vector<float> again(Floats(*second, 2).begin(),
                                   Floats(*second, 2).end());
    EXPECT_EQ(expected, again);
    FinishAndExpect(first, 0);
  });
}

TEST_P(Shared, SessionsOpenAndCloseWhileAnotherSteps) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    for (int step = 0; step < 6; ++step) {
      ProduceAll(first, step);
      Owned second = OpenBeside(first, first.options());
      ASSERT_TRUE(second != nullptr);
      ProduceAll(*second, step);
      if (step % 2 == 0) FinishAndExpect(first, step);
      FinishAndExpect(*second, step);
      second.reset();
      if (step % 2 == 1) FinishAndExpect(first, step);
    }
  });
}

// Each half of the ranks trains a model of its own.
TEST_P(Shared, GroupsHaveSessions) {
  RunRanks(MakeJob(), [](GradientSession& all) {
    std::vector<int> members;
    for (int r = all.rank() % 2; r < all.size(); r += 2) members.push_back(r);
    const GroupId id = 10U + static_cast<GroupId>(all.rank() % 2);
    ASSERT_TRUE(all.communicator().OpenGroup(id, members).ok());
    {
      const Owned half = OpenBeside(all, all.options(), id);
      ASSERT_TRUE(half != nullptr);
      EXPECT_EQ(half->size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[static_cast<std::size_t>(half->rank())], all.rank());
      for (int step = 0; step < 4; ++step) {
        ProduceAll(*half, step);
        FinishAndExpect(*half, step);
      }
    }
    EXPECT_TRUE(all.communicator().CloseGroup(id).ok());
    ProduceAll(all, 0);
    FinishAndExpect(all, 0);
  });
}

TEST_P(Shared, AllHearOfTheRankThatRefuses) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    const std::shared_ptr<Communicator> comm =
        first.communicator().shared_from_this();
    const int last = first.size() - 1;
    std::vector<TensorSpec> tensors = SomeTensors();
    if (first.rank() == last) tensors[1].name = tensors[0].name;
    Result<Owned> opened =
        GradientSession::Open(comm, tensors, first.options());
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(opened.status().message().find("both have the name"),
              std::string::npos)
        << opened.status().message();
    if (first.rank() == last) {
      tensors = SomeTensors();
      tensors[2].elements += 1;
    }
    opened = GradientSession::Open(comm, tensors, first.options());
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(opened.status().message().find("rank " + std::to_string(last) +
                                             " has tensor 2="),
              std::string::npos)
        << opened.status().message();
    EXPECT_EQ(GradientSession::Open(comm, tensors, first.options(), 77)
                  .status()
                  .code(),
              StatusCode::kInvalidArgument);
    // Nothing else has suffered.
    ProduceAll(first, 0);
    FinishAndExpect(first, 0);
  });
}

// The communicator stays open, so only the session can tell the others.
TEST_P(Shared, WhoStepsOnHearsOfARankThatHasClosed) {
  // The job ends as soon as one rank steps on, for a rank in its first step
  // too.
  std::barrier all_have_stepped(MakeJob().size);
  RunRanks(MakeJob(), [&](GradientSession& first) {
    Owned second = OpenBeside(first, first.options());
    ASSERT_TRUE(second != nullptr);
    ProduceAll(*second, 0);
    FinishAndExpect(*second, 0);
    all_have_stepped.arrive_and_wait();
    const auto began = std::chrono::steady_clock::now();
    if (first.rank() == 1) {
      second.reset();
      while (first.communicator().Check().ok() &&
             std::chrono::steady_clock::now() - began <
                 std::chrono::seconds(30)) {
        std::this_thread::yield();
      }
      return;
    }
    ProduceAll(*second, 1);
    const Status status = second->FinishStep().status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("rank 1 has closed its session after 1"),
              std::string::npos)
        << status.message();
    EXPECT_LT(std::chrono::steady_clock::now() - began,
              std::chrono::seconds(20));
  });
}

// Marks some tensors of the open step, a different number on each rank.
void ProduceSome(GradientSession& session) {
  const std::size_t tensors = session.tensors();
  const std::size_t some =
      1 + 3 * static_cast<std::size_t>(session.rank()) % (tensors - 1);
  for (std::size_t i = tensors; i-- > tensors - some;) Produce(session, i, 1);
}

// Every tensor is a bucket, so each rank has other calls in flight.
TEST_P(Shared, OthersGoOnIfAllCloseInTheMiddleOfAStep) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    for (const float sparsity : {0.0F, 0.5F}) {
      Options options = first.options();
      options.bucket_bytes = 1;
      options.sparsity = sparsity;
      options.chunk_elements = 1000;
      Owned second = OpenBeside(first, options);
      ASSERT_TRUE(second != nullptr);
      ProduceAll(*second, 0);
      ASSERT_TRUE(second->FinishStep().ok());
      ProduceSome(*second);
      second.reset();
      ProduceAll(first, 0);
      FinishAndExpect(first, 0);
    }
  });
}

TEST_P(Shared, WhoWaitsForAStepHearsOfARankThatClosedInItsMiddle) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Options options = first.options();
    options.bucket_bytes = 1;
    Owned second = OpenBeside(first, options);
    ASSERT_TRUE(second != nullptr);
    if (first.rank() == 1) {
      ProduceSome(*second);
      second.reset();
      EXPECT_FALSE(first.communicator().Check().ok());
      return;
    }
    ProduceAll(*second, 0);
    const Status status = second->FinishStep().status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("rank 1 has closed its session after 0"),
              std::string::npos)
        << status.message();
  });
}

// Nothing is in flight, and no other rank has begun the step.
TEST_P(Shared, OthersGoOnIfARankClosesInAStepThatIsOnlyItsOwn) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Options options = first.options();
    options.overlap = false;
    Owned second = OpenBeside(first, options);
    ASSERT_TRUE(second != nullptr);
    if (first.rank() == 0) ProduceSome(*second);
    second.reset();
    ProduceAll(first, 0);
    FinishAndExpect(first, 0);
  });
}

constexpr GroupId kBackwards = 5;

// Opens that group: all ranks in the opposite order.
void OpenBackwards(Communicator& comm) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
  std::iota(ranks.rbegin(), ranks.rend(), 0);
  ASSERT_TRUE(comm.OpenGroup(kBackwards, ranks).ok());
}

TEST_P(Shared, AGroupStaysOpenAsLongAsItsSession) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Communicator& comm = first.communicator();
    ASSERT_NO_FATAL_FAILURE(OpenBackwards(comm));
    Owned session = OpenBeside(first, first.options(), kBackwards);
    ASSERT_TRUE(session != nullptr);
    EXPECT_EQ(comm.CloseGroup(kBackwards).code(),
              StatusCode::kFailedPrecondition);
    ProduceAll(*session, 0);
    FinishAndExpect(*session, 0);
    session.reset();
    EXPECT_TRUE(comm.CloseGroup(kBackwards).ok());
  });
}

// Ranks of a group have other numbers in it than in the job.
TEST_P(Shared, ADifferenceInAGroupNamesTheRankOfTheJob) {
  RunRanks(MakeJob(), [](GradientSession& first) {
    Communicator& comm = first.communicator();
    ASSERT_NO_FATAL_FAILURE(OpenBackwards(comm));
    Options options = first.options();
    if (comm.rank() == 0) options.bucket_bytes = 4096;
    auto opened = GradientSession::Open(comm.shared_from_this(), SomeTensors(),
                                        options, kBackwards);
    ASSERT_FALSE(opened.ok());
    const std::string& text = opened.status().message();
    const std::string last = StrCat("rank ", comm.size() - 1, " has bucket_");
    EXPECT_NE(text.find("disagree: " + last), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 has bucket_bytes=4"), std::string::npos)
        << text;
    EXPECT_TRUE(comm.CloseGroup(kBackwards).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(InProcess, Shared,
                         ::testing::Values(std::tuple{Over::kMemory, 2},
                                           std::tuple{Over::kMemory, 5},
                                           std::tuple{Over::kMessages, 3}),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Joined, Shared,
                         ::testing::Values(std::tuple{Over::kTcp, 2},
                                           std::tuple{Over::kMixed, 4},
                                           std::tuple{Over::kNeeded, 6},
                                           std::tuple{Over::kRdma, 3}),
                         ParamName);

// Returns once the job has ended, or after a time that is far too long.
void AwaitTheEnd(const Communicator& comm) {
  const auto began = std::chrono::steady_clock::now();
  while (comm.Check().ok() &&
         std::chrono::steady_clock::now() - began < std::chrono::seconds(30)) {
    std::this_thread::yield();
  }
}

// Whoever closes in that step later would otherwise wait for calls that the
// first one has not made.
TEST(SharedLate, ARankThatClosesInAStepAloneEndsTheJobWithNothingInFlight) {
  Job job;
  job.size = 2;
  job.tensors = SomeTensors();
  job.options.overlap = false;
  RunRanks(job, [](GradientSession& first) {
    Owned second = OpenBeside(first, first.options());
    ASSERT_TRUE(second != nullptr);
    ProduceSome(*second);
    const Communicator& comm = first.communicator();
    if (first.rank() == 1) AwaitTheEnd(comm);
    second.reset();
    EXPECT_NE(comm.Check().message().find("rank 0 closed its session in the "
                                          "middle of step 0"),
              std::string::npos)
        << comm.Check().ToString();
  });
}

TEST(SharedDevices, TakeOneSessionAtATime) {
  for (const Over over : {Over::kDevices, Over::kNccl}) {
    Job job;
    job.over = over;
    job.size = 2;
    job.tensors = SomeTensors();
    RunRanks(job, [](GradientSession& first) {
      const Result<Owned> second =
          GradientSession::Open(first.communicator().shared_from_this(),
                                SomeTensors(), first.options());
      EXPECT_EQ(second.status().code(), StatusCode::kUnimplemented)
          << second.status().ToString();
      ProduceAll(first, 0);
      FinishAndExpect(first, 0);
    });
  }
}

// The step that was left is waited for although the next one has not begun.
TEST(SharedDevices, WhoHasLeftAStepHearsOfARankThatHasClosed) {
  CommJob job;
  job.over = Over::kNccl;
  job.size = 2;
  std::atomic<bool> left{false};
  RunRanks(job, [&](Communicator& comm) {
    Result<Owned> opened = GradientSession::Open(comm.shared_from_this(),
                                                 SomeTensors(), job.options);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    GradientSession& session = *opened.value();
    ASSERT_TRUE(session.SetStream(StreamOfThisRank()->native()).ok());
    if (comm.rank() == 1) {
      left.wait(false);
      opened.value().reset();
      return AwaitTheEnd(comm);
    }
    ProduceAll(session, 0);
    const Result<AsyncStep> step = session.FinishStepAsync();
    left.store(true);
    left.notify_all();
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    const Status status = session.SaveState().status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("rank 1 has closed its session after 0"),
              std::string::npos)
        << status.message();
  });
}

// What is left of the session that closes in the middle of a step does not keep
// the next one from running on the same communicator of NCCL's.
TEST(SharedDevices, GoOnIfAllCloseASessionInTheMiddleOfAStep) {
  for (const Over over : {Over::kDevices, Over::kNccl}) {
    for (const float sparsity : {0.0F, 0.5F}) {
      CommJob job;
      job.over = over;
      job.size = 3;
      job.options.bucket_bytes = 1;
      job.options.sparsity = sparsity;
      job.options.chunk_elements = 1000;
      RunRanks(job, [&](Communicator& comm) {
        for (int life = 0; life < 3; ++life) {
          Result<Owned> opened = GradientSession::Open(
              comm.shared_from_this(), SomeTensors(), job.options);
          ASSERT_TRUE(opened.ok()) << opened.status().ToString();
          GradientSession& session = *opened.value();
          ASSERT_TRUE(session.SetStream(StreamOfThisRank()->native()).ok());
          ProduceAll(session, 0);
          const Result<AsyncStep> left = session.FinishStepAsync();
          ASSERT_TRUE(left.ok()) << left.status().ToString();
          ASSERT_TRUE(StreamOfThisRank()->Synchronize().ok());
          ProduceSome(session);
        }
        EXPECT_TRUE(comm.Check().ok()) << comm.Check().ToString();
      });
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
