#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/session/steps.h"

// Sparse steps that fail, and states that cannot be restored.
namespace gradientflow::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class SparseFailure : public Steps {
 protected:
  Job MakeSparse() const {
    Job job = MakeJob();
    job.options.sparsity = 0.75F;
    job.options.chunk_elements = 500;
    job.weights_on_host = true;
    return job;
  }
};

// A tensor whose elements the next step sends, or keeps, on all ranks.
std::size_t ElementOf(const std::vector<std::uint8_t>& next, bool sent) {
  const auto chunk = std::find(next.begin(), next.end(), sent ? 1 : 0);
  return static_cast<std::size_t>(chunk - next.begin()) * 500;
}

// Returns the selection that a step will use. It is that of the state saved
// before the step, found by a rehearsal in a separate session, since everything
// is deterministic.
std::vector<std::uint8_t> Rehearse(const Job& job, int steps) {
  std::vector<std::uint8_t> selection;
  RunRanks(job, [&](GradientSession& session) {
    for (int step = 0; step < steps; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
    }
    if (session.rank() == 0) selection = session.selection();
  });
  return selection;
}

TEST_P(SparseFailure, IsSeenByAllInTheSameStepAndHeals) {
  for (ResidualMode residual :
       {ResidualMode::kMomentum, ResidualMode::kPlain}) {
    Job job = MakeSparse();
    job.options.residual = residual;
    // theta and algorithms are fixed, so that a rehearsal predicts the
    // selection.
    job.options.algorithm = "two_sync";
    const std::vector<std::uint8_t> selection = Rehearse(job, 4);
    for (bool sent : {true, false}) {
      for (float bad : {kInfinity, kNaN}) {
        const std::size_t element = ElementOf(selection, sent);
        RunRanks(job, [&](GradientSession& session) {
          std::vector<std::vector<float>> weights;
          std::vector<float*> pointers;
          for (std::size_t i = 0; i < session.tensors(); ++i) {
            weights.emplace_back(Floats(session, i).size());
            pointers.push_back(weights.back().data());
          }
          for (int step = 0; step < 12; ++step) {
            for (std::size_t i = session.tensors(); i-- > 0;) {
              Fill(session, i, step);
            }
            if (step == 3 && session.rank() == 1) {
              reinterpret_cast<float*>(session.pool().data)[element] = bad;
            }
            for (std::size_t i = session.tensors(); i-- > 0;) {
              session.GradientReady(i);
            }
            const auto before = weights;
            const Result<StepStats> stats = session.FinishStep();
            ASSERT_TRUE(stats.ok()) << stats.status().ToString();
            if (step == 3) {
              ASSERT_EQ(session.selection(), selection);
            }
            EXPECT_EQ(stats.value().nonfinite, step == 3)
                << "step " << step << " rank " << session.rank()
                << (sent ? " sent" : " kept");
            ASSERT_TRUE(Update(session, {}, pointers).ok());
            if (stats.value().nonfinite) {
              EXPECT_EQ(weights, before);
            }
          }
          for (const auto& tensor : weights) {
            for (float weight : tensor) ASSERT_TRUE(std::isfinite(weight));
          }
        });
      }
    }
  }
}

TEST_P(SparseFailure, KeepsWhatIsFiniteOfAStepThatIsSkipped) {
  Job job = MakeSparse();
  job.options.residual = ResidualMode::kPlain;
  job.options.reduce = ReduceOp::kSum;
  RunRanks(job, [](GradientSession& session) {
    auto* pool = reinterpret_cast<float*>(session.pool().data);
    const std::size_t n = session.pool().bytes / sizeof(float);
    // Residuals do not decay: everything that was ever produced must arrive in
    // the end, except the one element that was lost.
    std::vector<double> arrived(n);
    const int steps = 60;
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < n; ++i) {
        pool[i] = step < 4 ? static_cast<float>(1 + i % 7) : 0.0F;
      }
      if (step == 2 && session.rank() == 0) pool[1234] = kInfinity;
      for (std::size_t i = session.tensors(); i-- > 0;) {
        session.GradientReady(i);
      }
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      EXPECT_EQ(stats.value().nonfinite, step == 2);
      if (stats.value().nonfinite) {
        // Otherwise what was kept back would look like finite gradients.
        for (std::size_t t = 0; t < session.tensors(); ++t) {
          for (const float v : Floats(session, t)) ASSERT_TRUE(std::isnan(v));
        }
        continue;
      }
      const std::vector<std::uint8_t> selection = session.selection();
      for (std::size_t i = 0; i < n; ++i) {
        if (selection[i / 500] != 0) arrived[i] += double{pool[i]};
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (i == 1234) continue;
      const double all = 4.0 * static_cast<double>(1 + i % 7) * session.size();
      ASSERT_NEAR(arrived[i], all, 1e-4 * all) << "element " << i;
    }
  });
}

TEST_P(SparseFailure, OverflowOfTheFloat16PoolIsReported) {
  Job job = MakeSparse();
  job.options.pool_dtype = job.options.wire_dtype = DType::kFloat16;
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 6; ++step) {
      auto* bits = reinterpret_cast<std::uint16_t*>(session.pool().data);
      const std::size_t n = session.pool().bytes / 2;
      std::fill(bits, bits + n, std::uint16_t{0x3C00});  // 1.0
      const bool bad = step == 2;
      if (bad && session.rank() == 0) bits[n - 1] = 0x7C00;  // Infinity.
      for (std::size_t i = session.tensors(); i-- > 0;) {
        session.GradientReady(i);
      }
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok());
      EXPECT_EQ(stats.value().nonfinite, bad) << "step " << step;
    }
  });
}

GF_INSTANTIATE_STEPS(SparseFailure);

// Opens a session of one rank, whose settings `change` has modified.
std::unique_ptr<GradientSession> OpenOne(
    const std::function<void(Options*, std::vector<TensorSpec>*)>& change) {
  Options options = Job::TestOptions();
  std::vector<TensorSpec> tensors = SomeTensors();
  options.sparsity = 0.5F;
  options.chunk_elements = 100;
  if (change) change(&options, &tensors);
  return GradientSession::Open(options, tensors).value();
}

TEST(State, OfOtherTensorsOrSettingsIsRefused) {
  const std::unique_ptr<GradientSession> session = OpenOne({});
  ProduceAll(*session, 0);
  ASSERT_TRUE(session->FinishStep().ok());
  const std::vector<std::byte> state = session->SaveState().value();
  const std::function<void(Options*, std::vector<TensorSpec>*)> changes[] = {
      [](Options* o, auto*) { o->sparsity = 0.0F; },
      [](Options* o, auto*) { o->sparsity = 0.25F; },
      [](Options* o, auto*) { o->chunk_elements = 99; },
      [](Options* o, auto*) { o->residual = ResidualMode::kPlain; },
      [](Options* o, auto*) { o->pool_dtype = DType::kFloat16; },
      [](Options*, auto* t) { t->pop_back(); },
      [](Options*, auto* t) { t->front().elements = 301; },
  };
  for (const auto& change : changes) {
    const std::unique_ptr<GradientSession> other = OpenOne(change);
    const Status status = other->RestoreState(state);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(status.message().empty());
    const std::vector<std::byte> before = other->SaveState().value();
    EXPECT_FALSE(other->RestoreState(state).ok());
    EXPECT_EQ(other->SaveState().value(), before);
  }
}

TEST(State, ThatIsDamagedIsRefused) {
  const std::unique_ptr<GradientSession> session = OpenOne({});
  ProduceAll(*session, 0);
  ASSERT_TRUE(session->FinishStep().ok());
  const std::vector<std::byte> state = session->SaveState().value();
  for (std::size_t at = 0; at < state.size(); at += 97) {
    std::vector<std::byte> damaged = state;
    damaged[at] ^= std::byte{4};
    EXPECT_FALSE(session->RestoreState(damaged).ok()) << at;
    damaged.resize(at);
    EXPECT_EQ(session->RestoreState(damaged).code(), StatusCode::kDataLoss);
  }
  EXPECT_TRUE(session->RestoreState(state).ok());
}

TEST(State, IsNotRestoredWithinAStep) {
  const std::unique_ptr<GradientSession> session = OpenOne({});
  const std::vector<std::byte> state = session->SaveState().value();
  Produce(*session, 3, 0);
  EXPECT_EQ(session->RestoreState(state).code(),
            StatusCode::kFailedPrecondition);
}

TEST(State, OfBeforeTheFirstUpdateForgetsTheMomentum) {
  const std::unique_ptr<GradientSession> session = OpenOne({});
  const std::vector<std::byte> fresh = session->SaveState().value();
  std::vector<std::vector<float>> weights;
  std::vector<float*> pointers;
  for (const TensorSpec& spec : SomeTensors()) {
    weights.emplace_back(spec.elements);
    pointers.push_back(weights.back().data());
  }
  ProduceAll(*session, 0);
  ASSERT_TRUE(session->FinishStep().ok());
  ASSERT_TRUE(session->OptimizerStep({}, pointers).ok());
  ASSERT_TRUE(session->RestoreState(fresh).ok());
  EXPECT_EQ(session->SaveState().value(), fresh);
}

}  // namespace
}  // namespace gradientflow::testing
