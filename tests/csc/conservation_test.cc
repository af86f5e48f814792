#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "gradientflow/session/state_file.h"
#include "kernels/kernels.h"
#include "tests/session/ranks.h"

// Rounding errors of a 16-bit pool are sent later: over hundreds of steps the
// exchanged values and the residual add up to the computed gradients.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kElements = 150;
constexpr std::size_t kChunk = 10;
constexpr int kSteps = 300;
constexpr int kBadStep = 120;  // One element overflows, or is infinite.
constexpr std::size_t kBad = 37;

void Convert(const void* src, DType from, void* dst, DType to) {
  ASSERT_EQ(
      kernels::CpuKernels().convert(
          {src, from, dst, to, nullptr, kElements, 1.0F, nullptr}, nullptr),
      0);
}

std::vector<float> ResidualOf(const GradientSession& session) {
  const std::vector<std::byte> bytes = session.SaveState().value();
  const SavedState state = ReadState(bytes).value();
  std::vector<float> residual(state.residual.size() / sizeof(float));
  std::memcpy(residual.data(), state.residual.data(), state.residual.size());
  return residual;
}

// About 1, exact in bfloat16, and the same on all ranks, so that their mean is
// exact too and only residuals round.
float Gradient(std::size_t i, int step) {
  const std::size_t mix = (i * 5 + static_cast<std::size_t>(step) * 3) % 7;
  return 1.0F + static_cast<float>(mix) / 128;
}

class Conservation : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static Job MakeJob(DType type) {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.tensors = {{"a", 94}, {"b", kElements - 94}};  // No padding.
    job.options.pool_dtype = job.options.wire_dtype = type;
    job.options.sparsity = 0.7F;
    job.options.chunk_elements = kChunk;
    job.options.residual = ResidualMode::kPlain;
    job.options.bucket_bytes = 64;
    job.options.loss_scale = 4;
    return job;
  }

  // Takes one step of `session`; adds up what it produced and exchanged.
  static void Step(GradientSession& session, DType type, int step,
                   std::vector<double>* made, std::vector<double>* sent) {
    std::vector<float> gradients(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float gradient = Gradient(i, step);
      gradients[i] = 4 * gradient;
      (*made)[i] += double{gradient};
    }
    if (step == kBadStep) {
      gradients[kBad] = std::numeric_limits<float>::infinity();
    }
    Convert(gradients.data(), DType::kFloat32, session.pool().data, type);
    session.GradientReady(1);
    session.GradientReady(0);
    const Result<StepStats> stats = session.FinishStep();
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    ASSERT_EQ(stats.value().nonfinite, step == kBadStep);
    if (stats.value().nonfinite) return;  // Skipped: nothing is taken.
    std::vector<float> pool(kElements);
    Convert(session.pool().data, type, pool.data(), DType::kFloat32);
    const std::vector<std::uint8_t> selection = session.selection();
    for (std::size_t i = 0; i < kElements; ++i) {
      if (selection[i / kChunk] == 0) continue;
      (*sent)[i] += double{pool[i]} / double{stats.value().gradient_scale};
    }
  }
};

TEST_P(Conservation, HoldsOverHundredsOfSteps) {
  for (const DType type :
       {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    RunRanks(MakeJob(type), [&](GradientSession& session) {
      std::vector<double> made(kElements);
      std::vector<double> sent(kElements);
      for (int step = 0; step < kSteps; ++step) {
        Step(session, type, step, &made, &sent);
        if (HasFailure()) return;
      }
      const std::vector<float> residual = ResidualOf(session);
      for (std::size_t i = 0; i < kElements; ++i) {
        ASSERT_TRUE(std::isfinite(residual[i])) << i;
        if (i == kBad) continue;
        ASSERT_NEAR(sent[i] + double{residual[i]} / 4, made[i], 2e-3)
            << Name(type) << ", element " << i;
      }
    });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(InProcess, Conservation,
                         ::testing::Values(std::tuple{Over::kMemory, 1},
                                           std::tuple{Over::kMemory, 2},
                                           std::tuple{Over::kMessages, 2},
                                           std::tuple{Over::kDevices, 1},
                                           std::tuple{Over::kDevices, 2},
                                           std::tuple{Over::kNccl, 2}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
