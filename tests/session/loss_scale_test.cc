#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "kernels/kernels.h"
#include "tests/session/ranks.h"

// The purpose of a loss scale: gradients below the smallest 16-bit numbers
// survive, with every algorithm, wire and pool, dense and sparse.
namespace gradientflow::testing {
namespace {

constexpr float kScale = 65536.0F;
constexpr std::size_t kElements = 3001;
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Magnitudes of 1e-9 to 1e-6, with equal signs, so that means do not cancel.
double Tiny(int rank, std::size_t i, int step) {
  const auto mix = static_cast<std::uint32_t>(
      i * 2654435761U + static_cast<std::size_t>(rank * 7919 + step * 104729));
  const double u = static_cast<double>((mix ^ mix >> 13) % 4096) / 4096;
  return (i % 2 == 0 ? 1 : -1) * std::pow(10.0, -9 + 3 * u);
}

double Mean(int size, std::size_t i, int step) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += Tiny(r, i, step);
  return sum / size;
}

void Convert(const void* src, DType from, void* dst, DType to) {
  ASSERT_EQ(
      kernels::CpuKernels().convert(
          {src, from, dst, to, nullptr, kElements, 1.0F, nullptr}, nullptr),
      0);
}

// The relative error of the median element, and the share of elements that are
// zero.
struct Loss {
  double median = 0;
  double zeros = 0;
};
Loss Compare(const std::vector<double>& seen,
             const std::vector<double>& expected) {
  std::vector<double> errors;
  double zeros = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    errors.push_back(std::fabs(seen[i] / expected[i] - 1));
    zeros += seen[i] == 0 ? 1 : 0;
  }
  if (errors.empty()) return {};
  const auto middle = errors.begin() + static_cast<long>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  return {*middle, zeros / static_cast<double>(errors.size())};
}

// One rounding of the coarser type, or several if partial sums travel.
double MedianBound(DType pool, DType wire) {
  if (pool == DType::kBFloat16 || wire == DType::kBFloat16) return 6e-3;
  if (pool == DType::kFloat16 || wire == DType::kFloat16) return 2e-3;
  return 1e-6;
}

class LossScale : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static Job MakeJob(DType pool, DType wire, double sparsity,
                     const std::string& algorithm) {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.tensors = {{"w", kElements}};
    job.options.pool_dtype = pool;
    job.options.wire_dtype = wire;
    job.options.loss_scale = kScale;
    job.options.segment_bytes = 4096;
    job.options.sparsity = sparsity;
    job.options.chunk_elements = 100;
    job.options.algorithm = algorithm;
    return job;
  }

  static std::vector<std::string> Algorithms() {
    const Over over = std::get<Over>(GetParam());
    // A device's pool meets the same algorithms as a host's, in staging memory.
    if (over == Over::kNccl || over == Over::kDevices ||
        over == Over::kSomeDevices) {
      return {"auto"};
    }
    const bool all_share = over == Over::kMemory;
    const bool all_place = over == Over::kPlaces || over == Over::kRdma;
    std::vector<std::string> names;
    for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
      // Only mixed fabrics have two levels; flat algorithms behave as
      // elsewhere.
      const bool two_levels =
          algorithm->memory == CollectiveAlgorithm::Memory::kMayShare;
      if (two_levels == (over == Over::kMixed) &&
          RunnableAlgorithm(algorithm, 8, all_share, all_place) == algorithm) {
        names.push_back(algorithm->name);
      }
    }
    return names;
  }

  static Result<StepStats> Step(GradientSession& session, DType pool,
                                int step) {
    std::vector<float> gradients(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      gradients[i] = static_cast<float>(Tiny(session.rank(), i, step)) * kScale;
    }
    Convert(gradients.data(), DType::kFloat32, session.gradient(0).data, pool);
    session.GradientReady(0);
    return session.FinishStep();
  }

  // Checks what the step exchanged.
  static void Check(GradientSession& session, DType pool, DType wire, int step,
                    const std::string& what) {
    const Result<StepStats> stats = Step(session, pool, step);
    ASSERT_TRUE(stats.ok()) << what << ": " << stats.status().ToString();
    ASSERT_FALSE(stats.value().nonfinite) << what;
    const double scale = double{stats.value().gradient_scale};
    EXPECT_EQ(scale, pool == DType::kFloat32 ? 1.0 : double{kScale}) << what;
    std::vector<float> pooled(kElements);
    Convert(session.gradient(0).data, pool, pooled.data(), DType::kFloat32);
    const std::vector<std::uint8_t> sent = session.selection();
    std::vector<double> seen;
    std::vector<double> expected;
    for (std::size_t i = 0; i < kElements; ++i) {
      if (!sent.empty() && sent[i / 100] == 0) continue;
      seen.push_back(double{pooled[i]} / scale);
      expected.push_back(Mean(session.size(), i, step));
    }
    const Loss loss = Compare(seen, expected);
    EXPECT_LT(loss.median, MedianBound(pool, wire)) << what;
    EXPECT_LT(loss.zeros, 1e-3) << what;
  }
};

TEST_P(LossScale, BringsSmallGradientsThrough) {
  for (const std::string& algorithm : Algorithms()) {
    for (const DType pool : kTypes) {
      for (const DType wire : kTypes) {
        for (const double sparsity : {0.0, 0.6}) {
          const std::string what = StrCat(
              algorithm, ", ", Name(pool), " as ", Name(wire), ", sparsity ",
              sparsity, ", ", OverName(std::get<Over>(GetParam())));
          RunRanks(MakeJob(pool, wire, sparsity, algorithm),
                   [&](GradientSession& session) {
                     // First everything is sent; then the selection, without a
                     // residual.
                     Check(session, pool, wire, 0, what);
                     Check(session, pool, wire, 1, what);
                   });
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The optimiser divides by it, in float32, and takes norms of true gradients.
TEST_P(LossScale, IsUndoneByTheOptimizer) {
  const bool mixed = std::get<Over>(GetParam()) == Over::kSomeDevices;
  for (const DType pool : kTypes) {
    for (const bool lars : {false, true}) {
      if (lars && mixed) continue;  // Refused.
      Job job = MakeJob(pool, DType::kFloat16, 0, "auto");
      job.weights_on_host = true;
      RunRanks(job, [&](GradientSession& session) {
        ASSERT_TRUE(Step(session, pool, 0).ok());
        const float start = lars ? 1e-6F : 0.0F;
        std::vector<float> weights(kElements, start);
        OptimizerOptions config;
        config.kind =
            lars ? OptimizerOptions::Kind::kLars : OptimizerOptions::Kind::kSgd;
        config.lr = 0.5F;
        config.lars_eta = 1;
        config.lars_eps = 0;
        ASSERT_TRUE(Update(session, config, {weights.data()}).ok());
        double squares = 0;
        for (std::size_t i = 0; i < kElements; ++i) {
          squares += std::pow(Mean(session.size(), i, 0), 2);
        }
        const double rate =
            lars ? 0.5 * double{start} * std::sqrt(double{kElements} / squares)
                 : 0.5;
        std::vector<double> seen;
        std::vector<double> expected;
        for (std::size_t i = 0; i < kElements; ++i) {
          seen.push_back(double{weights[i]} - double{start});
          expected.push_back(-rate * Mean(session.size(), i, 0));
        }
        EXPECT_LT(Compare(seen, expected).median,
                  MedianBound(pool, DType::kFloat16))
            << Name(pool) << (lars ? ", LARS" : ", SGD");
      });
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    InProcess, LossScale,
    ::testing::Combine(::testing::Values(Over::kMemory, Over::kMessages,
                                         Over::kPlaces, Over::kDevices,
                                         Over::kSomeDevices),
                       ::testing::Values(1, 3)),
    ParamName);
INSTANTIATE_TEST_SUITE_P(Joined, LossScale,
                         ::testing::Values(std::tuple{Over::kNccl, 2},
                                           std::tuple{Over::kMixed, 3},
                                           std::tuple{Over::kTcp, 2},
                                           std::tuple{Over::kRdma, 3}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
