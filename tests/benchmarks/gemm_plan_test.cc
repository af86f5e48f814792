#include "benchmarks/scaling/gemm_plan.h"

#include <cmath>

#include "benchmarks/scaling/gemm_backward.h"
#include "benchmarks/scaling/model.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

double FlopsOf(const std::vector<Gemm>& gemms) {
  double sum = 0;
  for (const Gemm& gemm : gemms) sum += gemm.flops();
  return sum;
}

TEST(PlanGemms, ComesToTwiceTheForwardOperationsOfAlexNetsLayers) {
  constexpr double kForward[] = {105415200, 447897600, 149520384, 224280576,
                                 149520384, 75497472,  33554432,  8192000};
  for (const int batch : {1, 32, 128}) {
    double forward = 0;
    double planned = 0;
    for (const double flops : kForward) {
      forward += flops;
      planned += FlopsOf(PlanGemms(BackwardFlops({"", 1, 0, flops}, batch)));
    }
    EXPECT_NEAR(planned / (2 * forward * batch), 1, 0.01) << batch;
  }
}

TEST(PlanGemms, StaysNearWhatIsAskedForAndWithinItsMatrices) {
  for (double flops = 1e6; flops < 3e13; flops *= 1.37) {
    const std::vector<Gemm> gemms = PlanGemms(flops);
    ASSERT_FALSE(gemms.empty()) << flops;
    // Half of eight columns, of at least a quarter of the edge.
    EXPECT_NEAR(FlopsOf(gemms) / flops, 1, flops < 1e8 ? 0.26 : 0.04) << flops;
    for (const Gemm& gemm : gemms) {
      EXPECT_LE(1.0 * gemm.m * gemm.k, kMaxGemmElements);
      EXPECT_LE(1.0 * gemm.k * gemm.n, kMaxGemmElements);
      EXPECT_LE(1.0 * gemm.m * gemm.n, kMaxGemmElements);
      EXPECT_EQ(gemm.n % 8, 0);
      EXPECT_EQ(gemm.k % 8, 0);
    }
  }
}

TEST(PlanGemms, UsesLargeMatricesWhereThereIsWork) {
  const std::vector<Gemm> gemms = PlanGemms(5e11);
  for (const Gemm& gemm : gemms) {
    EXPECT_EQ(gemm.m, kGemmEdge);
    EXPECT_EQ(gemm.k, kGemmEdge);
  }
  EXPECT_EQ(gemms.front().n, kGemmColumns);
}

TEST(PlanGemms, PlansNothingForNoWork) {
  EXPECT_TRUE(PlanGemms(0).empty());
  EXPECT_TRUE(PlanGemms(1000).empty());
}

}  // namespace
}  // namespace gradientflow::benchmarks
