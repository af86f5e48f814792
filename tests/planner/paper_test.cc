// The model against the paper's measurements: no fold may get worse.
#include "gradientflow/planner/paper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gradientflow/planner/nelder_mead.h"
#include "gradientflow/planner/predict.h"

namespace gradientflow::planner {
namespace {

const char* const kData = "benchmarks/data";

const PaperData& Data() {
  static const PaperData data = [] {
    auto read = ReadPaperData(kData);
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.value();
  }();
  return data;
}

TEST(Paper, NoFoldIsWorseThanRecorded) {
  const PaperReport report = ReportOnPaper(PaperModel(Data()));
  ASSERT_EQ(report.folds.size(), 10U);
  for (const Fold& fold : report.folds) {
    EXPECT_FALSE(fold.worse())
        << fold.fitted_to << " -> " << fold.predicted << ": median "
        << fold.median << ", worst " << fold.worst << "; recorded "
        << fold.recorded_median << ", " << fold.recorded_worst;
  }
  // All 24, and leaving out a configuration, a cell, a (network, N).
  const double most[4][2] = {
      {0.03, 0.08}, {0.03, 0.08}, {0.035, 0.08}, {0.05, 0.1}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.folds[i].cells.size(), 24U);
    EXPECT_LE(report.folds[i].median, most[i][0]) << report.folds[i].predicted;
    EXPECT_LE(report.folds[i].worst, most[i][1]) << report.folds[i].predicted;
  }
  // What predictions take for the model's own error.
  EXPECT_NEAR(report.elsewhere_error_80, kModelErrorFraction, 0.002);
}

// Cells that the model itself has made give its constants back.
TEST(Paper, TheFitFindsTheConstantsOfTheModel) {
  const PaperModel model(Data());
  const SharedConstants truth{5e-6, 2e9, 0.02, 1e-4};
  std::vector<PaperCell> cells;
  for (PaperCell cell : Data().cells) {
    if (cell.cluster != 'V' || cell.ranks < 16) continue;
    cell.images_per_second = model.ImagesPerSecond(cell, truth);
    cells.push_back(cell);
  }
  const SharedConstants found = model.Fit(cells, {});
  EXPECT_NEAR(found.hop_seconds, truth.hop_seconds, 0.02 * truth.hop_seconds);
  EXPECT_NEAR(found.bytes_per_second, truth.bytes_per_second,
              0.02 * truth.bytes_per_second);
  EXPECT_NEAR(found.spread_fraction, truth.spread_fraction, 1e-3);
  EXPECT_NEAR(found.backward_seconds_per_call, truth.backward_seconds_per_call,
              1e-5);
}

TEST(Paper, SaysWhichFileIsMissing) {
  const auto read = ReadPaperData("nowhere");
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("nowhere/paper/one_gpu.csv"),
            std::string::npos);
}

TEST(Minimize, FindsValleysAndStaysInTheBox) {
  const auto rosenbrock = [](const std::vector<double>& x) {
    return std::pow(1 - x[0], 2) + 100 * std::pow(x[1] - x[0] * x[0], 2);
  };
  const auto found = Minimize({{0.2, 2}, {0, 0}, {3, 3}}, rosenbrock);
  EXPECT_NEAR(found[0], 1, 1e-2);
  EXPECT_NEAR(found[1], 1, 2e-2);
  const auto held =
      Minimize({{1, 1}, {0.5, 0}, {3, 3}}, [](const std::vector<double>& x) {
        return x[0] * x[0] + std::pow(x[1] - 2, 2);
      });
  EXPECT_EQ(held[0], 0.5);
  EXPECT_NEAR(held[1], 2, 1e-3);
}

}  // namespace
}  // namespace gradientflow::planner
