#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/session/steps.h"

// States of several ranks: all of them are restored, or none.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;
using ByRank = std::vector<Bytes>;

bool Contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

std::string Rank(int rank) { return "rank " + std::to_string(rank); }

class State : public Steps {
 protected:
  static Job MakeSparse() {
    Job job = MakeJob();
    job.options.sparsity = 0.75F;
    job.options.chunk_elements = 500;
    job.weights_on_host = true;
    return job;
  }
};

void Train(GradientSession& session, int first, int last) {
  for (int step = first; step < last; ++step) {
    ProduceAll(session, step);
    const Result<StepStats> stats = session.FinishStep();
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  }
}

void UpdateOnce(GradientSession& session) {
  std::vector<std::vector<float>> weights;
  std::vector<float*> pointers;
  for (const TensorSpec& spec : SomeTensors()) {
    weights.emplace_back(spec.elements);
    pointers.push_back(weights.back().data());
  }
  ASSERT_TRUE(Update(session, {}, pointers).ok());
}

// The states that all ranks save after `steps` steps of a new run.
ByRank SaveAfter(const Job& job, int steps) {
  ByRank states(static_cast<std::size_t>(job.size));
  RunRanks(job, [&](GradientSession& session) {
    Train(session, 0, steps);
    states[static_cast<std::size_t>(session.rank())] =
        session.SaveState().value();
  });
  return states;
}

// Restoring fails on all ranks and changes nothing: the state of `who` is
// refused, and the others report it. Then training goes on.
void ExpectRefused(GradientSession& session, const Bytes& state,
                   StatusCode code, int who, const std::string& why) {
  const Bytes before = session.SaveState().value();
  const Status status = session.RestoreState(state);
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_TRUE(Contains(status, why)) << status.ToString();
  if (session.rank() != who) {
    EXPECT_TRUE(Contains(status, Rank(who))) << status.ToString();
  }
  EXPECT_EQ(session.SaveState().value(), before);
}

TEST_P(State, GoesOnInAnotherRunWhateverItsTuning) {
  Job job = MakeSparse();
  ByRank middle(static_cast<std::size_t>(job.size));
  ByRank end = middle;
  RunRanks(job, [&](GradientSession& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Train(session, 0, 3);
    UpdateOnce(session);
    middle[me] = session.SaveState().value();
    Train(session, 3, 6);
    end[me] = session.SaveState().value();
  });
  job.options.bucket_bytes = 4096;
  job.options.segment_bytes = 8192;
  job.options.segments_in_flight = 2;
  job.options.connections = 3;
  job.options.loss_scale = 16;
  RunRanks(job, [&](GradientSession& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Train(session, 0, 1);
    const Status restored = session.RestoreState(middle[me]);
    ASSERT_TRUE(restored.ok()) << restored.ToString();
    EXPECT_EQ(session.SaveState().value(), middle[me]);
    Train(session, 3, 6);
    EXPECT_EQ(session.SaveState().value(), end[me]);
  });
}

TEST_P(State, OfOneRankIsNoOtherRanks) {
  const Job job = MakeSparse();
  const ByRank states = SaveAfter(job, 2);
  RunRanks(job, [&](GradientSession& session) {
    if (session.rank() == 0) {
      ExpectRefused(session, states[0], StatusCode::kInvalidArgument, 1,
                    "the state is that of rank 0");
    } else {
      ExpectRefused(session, states[0], StatusCode::kInvalidArgument,
                    session.rank(),
                    "that of rank 0, this is " + Rank(session.rank()));
    }
    EXPECT_TRUE(
        session.RestoreState(states[static_cast<std::size_t>(session.rank())])
            .ok());
    Train(session, 2, 3);
  });
}

TEST_P(State, OfAnotherStepOrRunIsRefusedByAll) {
  const Job job = MakeSparse();
  const ByRank after_two = SaveAfter(job, 2);
  const ByRank again = SaveAfter(job, 2);
  const ByRank fresh = SaveAfter(job, 0);
  RunRanks(job, [&](GradientSession& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    const bool odd = session.rank() == session.size() - 1;
    Train(session, 0, 2);
    const Bytes early = session.SaveState().value();
    Train(session, 2, 3);
    ExpectRefused(session, odd ? early : session.SaveState().value(),
                  StatusCode::kInvalidArgument, session.size() - 1,
                  "of step 2, rank 0's of step 3");
    ExpectRefused(session, odd ? again[me] : after_two[me],
                  StatusCode::kInvalidArgument, session.size() - 1,
                  "another training run");
    ExpectRefused(session, odd ? after_two[me] : fresh[me],
                  StatusCode::kInvalidArgument, session.size() - 1,
                  "another training run");
    Train(session, 3, 5);
  });
}

TEST_P(State, OfBeforeAnUpdateAndOfAfterItDoNotBelongTogether) {
  const Job job = MakeSparse();
  RunRanks(job, [&](GradientSession& session) {
    Train(session, 0, 2);
    UpdateOnce(session);
    Train(session, 2, 3);
    const Bytes before = session.SaveState().value();
    UpdateOnce(session);
    const Bytes after = session.SaveState().value();
    ExpectRefused(session, session.rank() == 1 ? before : after,
                  StatusCode::kInvalidArgument, 1, "another momentum");
    EXPECT_TRUE(session.RestoreState(before).ok());
  });
}

TEST_P(State, ThatIsDamagedOnOneRankIsRefusedByAll) {
  const Job job = MakeSparse();
  RunRanks(job, [&](GradientSession& session) {
    Train(session, 0, 2);
    Bytes state = session.SaveState().value();
    const bool odd = session.rank() == session.size() - 1;
    for (const std::size_t at : {std::size_t{3}, state.size() / 2}) {
      Bytes damaged = state;
      if (odd) damaged[at] ^= std::byte{1};
      ExpectRefused(session, damaged, StatusCode::kDataLoss, session.size() - 1,
                    "saved state: expected");
    }
    ExpectRefused(session, odd ? Bytes() : state, StatusCode::kDataLoss,
                  session.size() - 1, "seen 0");
    EXPECT_TRUE(session.RestoreState(state).ok());
    Train(session, 2, 4);
  });
}

TEST_P(State, ThatOneRankRestoresIsNoAllgatherOfAnother) {
  if (std::get<int>(GetParam()) == 1) GTEST_SKIP() << "needs another rank";
  RunRanks(MakeSparse(), [](GradientSession& session) {
    if (session.rank() == 0) {
      const auto state = session.SaveState();
      ASSERT_TRUE(state.ok());
      EXPECT_FALSE(session.RestoreState(state.value()).ok());
      return;
    }
    // As long as the message that ranks compare.
    std::vector<std::int8_t> mine(512, 1);
    std::vector<std::int8_t> all(mine.size() *
                                 static_cast<std::size_t>(session.size()));
    CollectiveCall call;
    call.kind = CollectiveKind::kAllgather;
    call.input = mine.data();
    call.output = all.data();
    call.count = mine.size();
    call.dtype = call.wire = DType::kInt8;
    EXPECT_FALSE(session.communicator().Run(call).ok());
  });
}

TEST_P(State, IsRestoredBetweenStepsOnly) {
  const Job job = MakeSparse();
  RunRanks(job, [&](GradientSession& session) {
    Train(session, 0, 2);
    const Bytes state = session.SaveState().value();
    const bool odd = session.rank() == session.size() - 1;
    if (odd) Produce(session, 3, 2);
    const Status status = session.RestoreState(state);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Contains(status, "within step 2")) << status.ToString();
    for (std::size_t t = session.tensors(); t-- > 0;) {
      if (!odd || t != 3) Produce(session, t, 2);
    }
    EXPECT_TRUE(session.FinishStep().ok());
  });
}

TEST_P(State, SaysItsSizeBeforeItIsSaved) {
  for (const float sparsity : {0.0F, 0.75F}) {
    Job job = MakeSparse();
    job.options.sparsity = sparsity;
    RunRanks(job, [&](GradientSession& session) {
      const auto check = [&] {
        EXPECT_EQ(session.StateBytes().value(),
                  session.SaveState().value().size());
      };
      check();
      Train(session, 0, 1);
      check();
      UpdateOnce(session);
      check();
    });
  }
}

GF_INSTANTIATE_STEPS(State);

}  // namespace
}  // namespace gradientflow::testing
