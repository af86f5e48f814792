#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/session/steps.h"

// Calls at the wrong moment: their errors, and that they change nothing.
namespace gradientflow::testing {
namespace {

class WrongMoments : public Steps {
 protected:
  // It sends some chunks, so that there is a residual.
  static Job MakeSparseJob() {
    Job job = MakeJob();
    job.options.sparsity = 0.5F;
    job.options.chunk_elements = 100;
    job.weights_on_host = true;
    return job;
  }
};

struct Weights {
  explicit Weights(const GradientSession& session) {
    for (std::size_t i = 0; i < session.tensors(); ++i) {
      data.emplace_back(session.gradient(i).bytes / sizeof(float), 1.0F);
    }
    for (auto& tensor : data) pointers.push_back(tensor.data());
  }
  std::vector<std::vector<float>> data;
  std::vector<float*> pointers;
};

bool Says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

void ExpectTooEarlyOrLate(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, text)) << status.ToString();
}

TEST_P(WrongMoments, AHooksMistakeEndsTheStepBeforeAnyRankHasASum) {
  const std::function<void(GradientSession&)> mistakes[] = {
      [](GradientSession& session) { session.GradientAbsent(2); },
      [](GradientSession& session) { session.GradientReady(2); },
      [](GradientSession& session) { session.GradientAbsent(11); },
      [](GradientSession& session) { session.GradientReady(11); },
  };
  const Job job = MakeJob();
  for (const auto& mistake : mistakes) {
    RunRanks(job, [&](GradientSession& session) {
      for (std::size_t i = session.tensors(); i-- > 1;) Produce(session, i, 0);
      if (session.rank() == session.size() - 1) mistake(session);
      Produce(session, 0, 0);
      const Result<StepStats> finished = session.FinishStep();
      ASSERT_FALSE(finished.ok()) << "rank " << session.rank();
      const Status& why = finished.status();
      EXPECT_EQ(why.code(), StatusCode::kInvalidArgument) << why.ToString();
      EXPECT_TRUE(Says(why, "weight2") || Says(why, "only 11"))
          << why.ToString();
    });
  }
}

TEST_P(WrongMoments, AbsentInVainLeavesTheGradientAlone) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    // Nothing is sent before tensor 10, the last of the model.
    for (std::size_t i = 0; i < 10; ++i) Produce(session, i, 0);
    session.GradientAbsent(2);
    for (std::size_t i = 0; i < Floats(session, 2).size(); ++i) {
      ASSERT_EQ(Floats(session, 2)[i], Gradient(session.rank(), 2, i, 0)) << i;
    }
    EXPECT_FALSE(session.FinishStep().ok());
  });
}

TEST_P(WrongMoments, AFailedSessionKeepsFailingWithItsFirstReason) {
  RunRanks(MakeSparseJob(), [](GradientSession& session) {
    Weights weights(session);
    const OptimizerOptions sgd;
    ProduceAll(session, 0);
    ASSERT_TRUE(session.FinishStep().ok());
    ASSERT_TRUE(session.OptimizerStep(sgd, weights.pointers).ok());
    Result<std::vector<std::byte>> state = session.SaveState();
    ASSERT_TRUE(state.ok());
    const std::vector<std::uint8_t> selection = session.selection();
    // SaveState() has waited for the device's work of this step.
    const auto before = weights.data;
    for (std::size_t i = session.tensors(); i-- > 1;) Produce(session, i, 1);
    // All have finished the first step before the job ends.
    char here = 0;
    if (session.rank() > 0) {
      ASSERT_TRUE(session.communicator().Send(0, 1, &here, 1).ok());
    } else {
      for (int r = 1; r < session.size(); ++r) {
        ASSERT_TRUE(session.communicator().Recv(r, 1, &here, 1).ok());
      }
      session.communicator().Abort(Status(StatusCode::kAborted, "no more"));
      session.communicator().Abort(
          Status(StatusCode::kInternal, "a later reason"));
    }
    Produce(session, 0, 1);
    const Status first = session.FinishStep().status();
    EXPECT_EQ(first.code(), StatusCode::kAborted) << first.ToString();
    EXPECT_TRUE(Says(first, "no more")) << first.ToString();
    const Status later[] = {
        session.FinishStep().status(),
        session.OptimizerStep(sgd, weights.pointers),
        session.SaveState().status(),
        session.RestoreState(state.value()),
        session.SetLossScale(2.0F),
        session.SetStream(nullptr),
    };
    for (const Status& status : later) {
      EXPECT_EQ(status.ToString(), first.ToString());
    }
    EXPECT_EQ(weights.data, before);
    EXPECT_EQ(session.selection(), selection);
  });
}

TEST_P(WrongMoments, TheOptimizerTakesEachFinishedStepOnce) {
  RunRanks(MakeSparseJob(), [](GradientSession& session) {
    Weights weights(session);
    OptimizerOptions sgd;
    const auto apply = [&] {
      return session.OptimizerStep(sgd, weights.pointers);
    };
    ExpectTooEarlyOrLate(apply(), "no step has been finished");
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = session.tensors(); i-- > 1;) {
        Produce(session, i, step);
      }
      ExpectTooEarlyOrLate(apply(), "within step " + std::to_string(step));
      if (step == 2) Floats(session, 0)[3] = std::nanf("");
      if (step < 2) Fill(session, 0, step);
      session.GradientReady(0);
      ASSERT_TRUE(session.FinishStep().ok());
      sgd.momentum = 0.5F;
      const Status other = apply();
      EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(Says(other, "0.5") && Says(other, "0.9")) << other.ToString();
      sgd.momentum = session.options().momentum;
      EXPECT_TRUE(apply().ok()) << "after a call that was refused";
      // The device finishes the update before the gradients are written again.
      ASSERT_TRUE(session.SaveState().ok());
      ExpectTooEarlyOrLate(
          apply(), "step " + std::to_string(step) + " has been applied");
    }
    // The update is optional, and is not done later.
    ProduceAll(session, 3);
    ASSERT_TRUE(session.FinishStep().ok());
    const std::vector<std::byte> state = session.SaveState().value();
    ASSERT_TRUE(session.RestoreState(state).ok());
    ExpectTooEarlyOrLate(apply(), "no step has been finished");
  });
}

TEST_P(WrongMoments, AnyMomentumGoesWithAPlainResidual) {
  Job job = MakeSparseJob();
  job.options.residual = ResidualMode::kPlain;
  RunRanks(job, [](GradientSession& session) {
    Weights weights(session);
    OptimizerOptions sgd;
    sgd.momentum = 0.25F;
    ProduceAll(session, 0);
    ASSERT_TRUE(session.FinishStep().ok());
    EXPECT_TRUE(Update(session, sgd, weights.pointers).ok());
  });
}

TEST_P(WrongMoments, AStepIsNeitherSavedNorRestoredHalfWay) {
  RunRanks(MakeSparseJob(), [](GradientSession& session) {
    const std::vector<std::byte> state = session.SaveState().value();
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(session.SaveState().ok());
      const std::string within = "within step " + std::to_string(step);
      Produce(session, 5, step);
      ExpectTooEarlyOrLate(session.SaveState().status(), within);
      ExpectTooEarlyOrLate(session.RestoreState(state), within);
      ExpectTooEarlyOrLate(session.SetStream(nullptr), within);
      EXPECT_TRUE(session.SetLossScale(1.0F).ok());
      ExpectTooEarlyOrLate(session.FinishStep().status(), "weight10");
      ExpectTooEarlyOrLate(session.SaveState().status(), within);
      for (const std::size_t i : AllTensors(session)) {
        if (i != 5) Produce(session, i, step);
      }
      ASSERT_TRUE(session.FinishStep().ok());
    }
  });
}

TEST_P(WrongMoments, AGradientMarkedDuringARestoreEndsTheJob) {
  if (std::get<int>(GetParam()) == 1) GTEST_SKIP() << "restores at once";
  std::atomic<bool> marked = false;
  RunRanks(MakeSparseJob(), [&](GradientSession& session) {
    ProduceAll(session, 0);
    ASSERT_TRUE(session.FinishStep().ok());
    const auto state = session.SaveState();
    ASSERT_TRUE(state.ok());
    if (session.rank() != 0) {
      while (!marked) std::this_thread::yield();
      static_cast<void>(session.RestoreState(state.value()));
      ProduceAll(session, 1);
      EXPECT_FALSE(session.FinishStep().ok());
      return;
    }
    std::thread restorer([&] {
      const Status status = session.RestoreState(state.value());
      ExpectTooEarlyOrLate(status, "was marked while RestoreState() ran");
    });
    for (;;) {  // Until it waits for the others.
      const Status now = session.SetLossScale(1.0F);
      if (Says(now, "while RestoreState() runs")) break;
      std::this_thread::yield();
    }
    session.GradientReady(10);
    marked = true;
    restorer.join();
    const Status finished = session.FinishStep().status();
    EXPECT_TRUE(Says(finished, "was marked while")) << finished.ToString();
  });
}

TEST_P(WrongMoments, OfTwoOptimizersAtOnceOneIsRefused) {
  Job job = MakeJob();
  job.weights_on_host = true;
  RunRanks(job, [](GradientSession& session) {
    Weights weights(session);
    const OptimizerOptions sgd;
    for (std::uint64_t step = 0; step < 20; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
      std::atomic<int> taken = 0;
      const auto update = [&] {
        const Status status = Update(session, sgd, weights.pointers);
        if (status.ok()) {
          ++taken;
        } else {
          EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition)
              << status.ToString();
        }
      };
      std::thread other(update);
      update();
      other.join();
      EXPECT_EQ(taken, 1);
    }
  });
}

TEST_P(WrongMoments, ALossScaleThatIsNoneChangesNothing) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    for (int step = 0; step < 2; ++step) {
      for (const float scale :
           {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf(""),
            std::numeric_limits<float>::denorm_min()}) {
        EXPECT_EQ(session.SetLossScale(scale).code(),
                  StatusCode::kInvalidArgument);
      }
      ProduceAll(session, step);
      FinishAndCheck(session, step);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WrongMoments,
                         ::testing::Values(std::tuple{Over::kMemory, 3},
                                           std::tuple{Over::kMessages, 2},
                                           std::tuple{Over::kDevices, 2}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
