#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tests/session/ranks.h"

// With `accumulate`, backward adds to the pool, which keeps back what is not
// sent. sparse_test.cc compares the steps with the reference; here is what the
// caller and the session owe each other.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kElements = 40;  // Four chunks.

Job AccumulatingJob(int size, ResidualMode residual) {
  Job job;
  job.size = size;
  job.tensors = {{"a", 8}, {"b", 32}};  // Pool: b, a, without padding.
  job.options.accumulate = true;
  job.options.residual = residual;
  job.options.sparsity = 0.75F;
  job.options.chunk_elements = 10;
  return job;
}

float* Pool(const GradientSession& session) {
  return reinterpret_cast<float*>(session.pool().data);
}

std::vector<float> PoolOf(const GradientSession& session) {
  return {Pool(session), Pool(session) + kElements};
}

// Adds `value` to every gradient, and hands all of them over.
Result<StepStats> Step(GradientSession& session, float value) {
  for (std::size_t i = 0; i < kElements; ++i) Pool(session)[i] += value;
  session.GradientReady(1);
  session.GradientReady(0);
  return session.FinishStep();
}

class AccumulateOver : public ::testing::TestWithParam<Over> {
 protected:
  static Job OverJob(int size, ResidualMode residual) {
    Job job = AccumulatingJob(size, residual);
    job.over = GetParam();
    return job;
  }
};
INSTANTIATE_TEST_SUITE_P(Everywhere, AccumulateOver,
                         ::testing::Values(Over::kMemory, Over::kDevices),
                         [](const auto& param) {
                           return std::string(OverName(param.param));
                         });

TEST_P(AccumulateOver, ZeroesWhatWasSentAndKeepsTheRest) {
  RunRanks(OverJob(2, ResidualMode::kPlain), [](GradientSession& session) {
    ASSERT_TRUE(ZeroAndWait(session).ok()) << "nothing to zero";
    ASSERT_TRUE(Step(session, 1).ok());
    ASSERT_TRUE(ZeroAndWait(session).ok());
    EXPECT_EQ(PoolOf(session), std::vector<float>(kElements, 0));
    for (int step = 1; step < 6; ++step) {
      const std::vector<float> before = PoolOf(session);
      ASSERT_TRUE(Step(session, 1).ok());
      std::vector<float> kept = PoolOf(session);
      for (std::size_t i = 0; i < kElements; ++i) {
        EXPECT_EQ(kept[i], before[i] + 1) << "sent or kept";
        if (session.selection()[i / 10] != 0) kept[i] = 0;
      }
      ASSERT_TRUE(ZeroAndWait(session).ok());
      EXPECT_EQ(PoolOf(session), kept);
      // Backward may have begun, so a second call does nothing.
      for (float& value : kept) value += 0.5F;
      for (std::size_t i = 0; i < kElements; ++i) {
        Pool(session)[i] += 0.5F;
      }
      ASSERT_TRUE(ZeroAndWait(session).ok());
      EXPECT_EQ(PoolOf(session), kept);
      for (std::size_t i = 0; i < kElements; ++i) {
        Pool(session)[i] -= 0.5F;
      }
    }
  });
}

TEST_P(AccumulateOver, ZeroesEverythingWhenAllIsSent) {
  Job job = OverJob(2, ResidualMode::kPlain);
  job.options.sparsity = 0;
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(Step(session, 2).ok());
      EXPECT_EQ(PoolOf(session), std::vector<float>(kElements, 2));
      ASSERT_TRUE(ZeroAndWait(session).ok());
      EXPECT_EQ(PoolOf(session), std::vector<float>(kElements, 0));
    }
    const std::vector<std::byte> saved = session.SaveState().value();
    ASSERT_TRUE(Step(session, 2).ok());
    ASSERT_TRUE(session.RestoreState(saved).ok());
    ASSERT_TRUE(ZeroAndWait(session).ok());
    EXPECT_EQ(PoolOf(session), std::vector<float>(kElements, 0));
    EXPECT_TRUE(Step(session, 2).ok());
  });
}

TEST_P(AccumulateOver, AnAbsentTensorKeepsWhatWasKeptBack) {
  RunRanks(OverJob(1, ResidualMode::kMomentum), [](GradientSession& session) {
    double total = 0;
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(Step(session, 1).ok());
      ASSERT_TRUE(ZeroAndWait(session).ok());
    }
    const std::vector<float> before = PoolOf(session);
    for (float value : before) total += double{value};
    EXPECT_GT(total, 1);
    session.GradientAbsent(0);
    session.GradientAbsent(1);
    ASSERT_TRUE(session.FinishStep().ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      const bool sent = session.selection()[i / 10] != 0;
      EXPECT_EQ(Pool(session)[i], sent ? before[i] : before[i] * 0.9F);
    }
  });
}

TEST_P(AccumulateOver, ASkippedStepZeroesNothingThatIsFinite) {
  RunRanks(OverJob(1, ResidualMode::kPlain), [](GradientSession& session) {
    Pool(session)[3] += std::nanf("");
    const Result<StepStats> stats = Step(session, 1);
    ASSERT_TRUE(stats.ok() && stats.value().nonfinite);
    ASSERT_TRUE(ZeroAndWait(session).ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(Pool(session)[i], i == 3 ? 0 : 1);
    }
  });
}

// A pool of float16, element by element.
class Float16Pool {
 public:
  explicit Float16Pool(GradientSession& session) : data_(session.pool().data) {}
  float Get(std::size_t i) const {
    float value = 0;
    Convert(data_ + 2 * i, DType::kFloat16, &value, DType::kFloat32);
    return value;
  }
  void Set(std::size_t i, float value) {
    Convert(&value, DType::kFloat32, data_ + 2 * i, DType::kFloat16);
  }

 private:
  static void Convert(const void* src, DType src_type, void* dst,
                      DType dst_type) {
    ASSERT_EQ(
        kernels::CpuKernels().convert(
            {src, src_type, dst, dst_type, nullptr, 1, 1.0F, nullptr}, nullptr),
        0);
  }

  std::byte* data_;
};

// Rounding loses at most a unit in the last place for each addition.
TEST(Accumulate, ConservesGradientsInAFloat16PoolUpToRounding) {
  Job job = AccumulatingJob(1, ResidualMode::kPlain);
  job.options.pool_dtype = job.options.wire_dtype = DType::kFloat16;
  job.options.loss_scale = 4;
  RunRanks(job, [](GradientSession& session) {
    Float16Pool pool(session);
    std::mt19937 random(5);
    std::vector<float> made(kElements);
    std::vector<float> sent(kElements);
    constexpr int kSteps = 50;
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t i = 0; i < kElements; ++i) {
        const float g = static_cast<float>(random() % 1000) / 256;
        made[i] += g;
        pool.Set(i, pool.Get(i) + g);
      }
      session.GradientReady(1);
      session.GradientReady(0);
      ASSERT_TRUE(session.FinishStep().ok());
      for (std::size_t i = 0; i < kElements; ++i) {
        if (session.selection()[i / 10] != 0) sent[i] += pool.Get(i);
      }
      ASSERT_TRUE(session.ZeroGradients().ok());
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      EXPECT_GT(sent[i], 10);
      EXPECT_NEAR(sent[i] + pool.Get(i), made[i], kSteps * 0x1p-11 * 64);
    }
  });
}

TEST(Accumulate, AStepThatBeginsTooEarlyEndsTheJob) {
  std::latch both(2);
  RunRanks(
      AccumulatingJob(2, ResidualMode::kPlain), [&](GradientSession& session) {
        EXPECT_TRUE(Step(session, 1).ok());
        if (session.rank() == 0) {
          EXPECT_TRUE(session.ZeroGradients().ok());
        }
        both.arrive_and_wait();
        const Status status = Step(session, 1).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_NE(status.message().find("rank 1 gave the job up"),
                  std::string::npos)
            << status.ToString();
        EXPECT_NE(status.message().find("ZeroGradients()"), std::string::npos);
        EXPECT_FALSE(session.ZeroGradients().ok());
      });
}

TEST(Accumulate, ComesAfterTheUpdate) {
  RunRanks(AccumulatingJob(1, ResidualMode::kPlain),
           [](GradientSession& session) {
             ASSERT_TRUE(Step(session, 1).ok());
             ASSERT_TRUE(session.ZeroGradients().ok());
             EXPECT_EQ(session.OptimizerStep({}, {nullptr, nullptr}).code(),
                       StatusCode::kFailedPrecondition);
             session.GradientReady(0);
             EXPECT_EQ(session.ZeroGradients().code(),
                       StatusCode::kFailedPrecondition)
                 << "within a step";
             session.GradientReady(1);
             EXPECT_TRUE(session.FinishStep().ok());
           });
}

// What is kept back is in units of the scaled gradients. Results of the step
// before are not, and the caller may yet read them.
TEST_P(AccumulateOver, RescalesWhatIsKeptAndNothingElse) {
  RunRanks(OverJob(2, ResidualMode::kPlain), [](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(Step(session, 1).ok());
      ASSERT_TRUE(ZeroAndWait(session).ok());
    }
    ASSERT_TRUE(session.SetLossScale(4).ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      Pool(session)[i] += 4 * static_cast<float>(1 + i / 10);
    }
    const std::vector<float> before = PoolOf(session);
    session.GradientReady(1);
    session.GradientReady(0);
    // Takes effect when the next step begins, within FinishStep().
    ASSERT_TRUE(session.SetLossScale(8).ok());
    ASSERT_TRUE(session.FinishStep().ok());
    const std::vector<std::uint8_t> sent = session.selection();
    for (std::size_t i = 0; i < kElements; ++i) {
      const float factor = sent[i / 10] != 0 ? 0.25F : 2;
      EXPECT_EQ(Pool(session)[i], before[i] * factor) << i;
    }
    ASSERT_TRUE(ZeroAndWait(session).ok());
    ASSERT_TRUE(session.SetLossScale(16).ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      const float factor = sent[i / 10] != 0 ? 0 : 4;
      EXPECT_EQ(Pool(session)[i], before[i] * factor) << i;
    }
  });
}

TEST(Accumulate, IsRefusedWithZeroedGradients) {
  Job job = AccumulatingJob(2, ResidualMode::kMomentum);
  job.options.zero_kept = true;
  EXPECT_EQ(job.options.ValidateValues().code(), StatusCode::kInvalidArgument);
}

TEST(Accumulate, OffLeavesThePoolAlone) {
  Job job = AccumulatingJob(1, ResidualMode::kMomentum);
  job.options.accumulate = false;
  RunRanks(job, [](GradientSession& session) {
    ASSERT_TRUE(Step(session, 1).ok());
    const std::vector<float> before = PoolOf(session);
    ASSERT_TRUE(session.ZeroGradients().ok());
    EXPECT_EQ(PoolOf(session), before);
    EXPECT_TRUE(session.OptimizerStep({}, {nullptr, nullptr}).ok());
  });
}

}  // namespace
}  // namespace gradientflow::testing
