// The model against the paper's measurements: no fold may get worse.
#include "gradientflow/planner/paper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

namespace gradientflow::planner {
namespace {

const char* const kData = "benchmarks/data";

TEST(Paper, NoFoldIsWorseThanRecorded) {
  const auto data = ReadPaperData(kData);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const PaperModel model(data.value());
  const PaperReport report = ReportOnPaper(model);
  const SharedConstants& c = report.constants;
  std::printf("%g %g %g %g\n", c.hop_seconds, c.bytes_per_second,
              c.spread_fraction, c.backward_seconds_per_message);
  EXPECT_EQ(report.folds.size(), 10U);
  for (const Fold& fold : report.folds) {
    EXPECT_FALSE(fold.worse())
        << fold.fitted_to << " -> " << fold.predicted << ": median "
        << fold.median << ", worst " << fold.worst << "; recorded "
        << fold.recorded_median << ", " << fold.recorded_worst;
    std::printf("%s -> %s: %zu cells, median %.1f %%, worst %.1f %%\n",
                fold.fitted_to.c_str(), fold.predicted.c_str(),
                fold.cells.size(), 100 * fold.median, 100 * fold.worst);
  }
  for (const PredictedCell& cell : report.folds.front().cells) {
    std::printf("%s %+.1f %%\n", cell.cell.Label().c_str(), 100 * cell.error);
  }
}

}  // namespace
}  // namespace gradientflow::planner
