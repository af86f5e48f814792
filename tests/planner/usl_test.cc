// Fits of the Universal Scalability Law.
#include "gradientflow/planner/usl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace gradientflow::planner {
namespace {

// Reference data of the R package usl: SPEC SDM91, and a ray tracer.
const std::vector<UslRun> kSpecSdm91 = {
    {1, 64.9},     {18, 995.9},   {36, 1652.4}, {72, 1853.2},
    {108, 1828.9}, {144, 1775.0}, {216, 1702.2}};
const std::vector<UslRun> kRaytracer = {
    {1, 20},   {4, 78},   {8, 130},  {12, 170}, {16, 190}, {20, 200},
    {24, 210}, {28, 230}, {32, 260}, {48, 280}, {64, 310}};

TEST(Usl, FitsTheReferenceOfSpecSdm91) {
  const UslFit fit = FitUsl(kSpecSdm91, false);
  EXPECT_NEAR(fit.alpha, 0.0277285, 2e-6);
  EXPECT_NEAR(fit.beta, 0.000104365, 2e-8);
  EXPECT_NEAR(fit.gamma, 89.99523, 2e-3);
  EXPECT_NEAR(fit.peak_ranks(), 96.5, 0.1);
}

TEST(Usl, KeepsBetaAtItsBound) {
  const UslFit fit = FitUsl(kRaytracer, false);
  EXPECT_EQ(fit.beta, 0);
  EXPECT_GT(fit.alpha, 0.02);
  EXPECT_TRUE(std::isinf(fit.peak_ranks()));
  EXPECT_DOUBLE_EQ(fit.most_rate(), fit.gamma / fit.alpha);
}

TEST(Usl, FindsExactLaws) {
  for (const UslFit& truth : {UslFit{1, 0.02, 0.02}, UslFit{7, 0, 1e-4},
                              UslFit{100, 0.3, 0}, UslFit{5, 0, 0}}) {
    std::vector<UslRun> runs;
    for (const double n : {1, 2, 4, 6, 8, 16}) {
      runs.push_back({n, truth.Rate(n)});
    }
    const UslFit fit = FitUsl(runs, true);
    EXPECT_NEAR(fit.gamma, truth.gamma, 1e-6 * truth.gamma);
    EXPECT_NEAR(fit.alpha, truth.alpha, 1e-6);
    EXPECT_NEAR(fit.beta, truth.beta, 1e-6);
  }
}

TEST(Usl, RefusesFewPointsAndFarPredictions) {
  std::vector<UslRun> runs;
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (const double n : {1, 2, 4, 8, 16}) runs.push_back({n, 10 * n});
  }
  const auto few = ReportUsl(runs, 10, 1);
  ASSERT_FALSE(few.ok());
  EXPECT_EQ(few.status().message(),
            "runs with 5 different numbers of ranks; a fit needs at least 6");
  runs.push_back({32, 320});
  const auto report = ReportUsl(runs, 10, 1);
  ASSERT_TRUE(report.ok());
  EXPECT_NEAR(PredictUsl(report.value(), 64).value(), 640, 1e-3);
  EXPECT_FALSE(PredictUsl(report.value(), 65).ok());
  runs.push_back({64, 0});
  EXPECT_FALSE(ReportUsl(runs, 10, 1).ok());
}

// The median of an even number of errors lies between the two in the middle.
TEST(Usl, HasTheMedianErrorOfAnEvenNumberOfRuns) {
  std::vector<UslRun> runs;
  const double noise[] = {0.01, -0.02, 0.03, -0.01, 0.04, -0.03};
  int i = 0;
  for (const double n : {1, 2, 4, 8, 16, 32}) {
    runs.push_back({n, 10 * n * (1 + noise[i++])});
  }
  const auto report = ReportUsl(runs, 0, 1);
  ASSERT_TRUE(report.ok());
  std::vector<double> errors;
  for (const UslRun& run : runs) {
    errors.push_back(
        std::abs(report.value().fit.Rate(run.ranks) / run.rate - 1));
  }
  std::sort(errors.begin(), errors.end());
  ASSERT_GT(errors[3] - errors[2], 1e-3);
  EXPECT_DOUBLE_EQ(report.value().median_error, (errors[2] + errors[3]) / 2);
}

// Where some draws have no peak, the interval has no end.
TEST(Usl, IntervalsMayBeInfinite) {
  const auto report = ReportUsl(kRaytracer, 200, 1);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(std::isinf(report.value().peak_ranks.high));
  EXPECT_FALSE(std::isnan(report.value().peak_ranks.low));
}

// The interval of 80 % holds the truth in about 800 of 1,000 sets of runs with
// 3 % noise; 75 to 85 % is five standard deviations of that around it.
TEST(Usl, IntervalsHoldTheTruthAsOftenAsTheySay) {
  const UslFit truth{100, 0.05, 0.001};
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 0.03);
  int alpha = 0;
  int beta = 0;
  int gamma = 0;
  int most = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    std::vector<UslRun> runs;
    for (const double n : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        runs.push_back({n, truth.Rate(n) * (1 + noise(random))});
      }
    }
    const auto report = ReportUsl(runs, 200, static_cast<unsigned>(draw));
    ASSERT_TRUE(report.ok());
    const auto holds = [](const Interval80& interval, double value) {
      return interval.low <= value && value <= interval.high;
    };
    alpha += holds(report.value().alpha, truth.alpha) ? 1 : 0;
    beta += holds(report.value().beta, truth.beta) ? 1 : 0;
    gamma += holds(report.value().gamma, truth.gamma) ? 1 : 0;
    most += holds(report.value().most_rate, truth.most_rate()) ? 1 : 0;
  }
  for (const int held : {alpha, beta, gamma, most}) {
    EXPECT_GE(held, 750);
    EXPECT_LE(held, 850);
  }
}

}  // namespace
}  // namespace gradientflow::planner
