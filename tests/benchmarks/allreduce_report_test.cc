#include <string>

#include "benchmarks/allreduce/report.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

Row Example() {
  Row row;
  row.batch.bytes = 1'000'000;
  row.ranks = 4;
  row.fabric = "tcp";
  row.algorithm = "ring";
  row.seconds = 1e-3;
  return row;
}

TEST(AllreduceReport, BusBandwidthIsThatOfNcclTests) {
  const Row row = Example();
  EXPECT_DOUBLE_EQ(row.algbw(), 1.0);
  EXPECT_DOUBLE_EQ(row.busbw(), 1.5);  // 2 (n - 1) / n.
}

TEST(AllreduceReport, MedianIsTheMiddleOrTheMeanOfTheTwoMiddles) {
  EXPECT_EQ(Median({5, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 100}), 3.5);
}

TEST(AllreduceReport, RatioIsTheMedianOfTheRoundsRatios) {
  // The machine was twice as slow in the second round and the peer had a
  // hiccup in the third.
  const Comparison other = Compare("openmpi", {1, 2, 1}, {3, 6, 50});
  EXPECT_EQ(other.ratio, 3);
  EXPECT_EQ(other.seconds, 6);
}

TEST(AllreduceReport, LineHasAColumnForEveryHeader) {
  Row row = Example();
  row.comparisons.push_back(Compare("bound", {1e-3}, {5e-4}));
  const std::string header = RowHeader({"bound"});
  EXPECT_EQ(header.find('\n'), RowLine(row).find('\n'));
  EXPECT_NE(RowLine(row).find("500.00"), std::string::npos);
  EXPECT_NE(RowLine(row).find("0.50"), std::string::npos);
}

TEST(AllreduceReport, JsonHoldsWhatTheLineDoes) {
  Row row = Example();
  row.batch.wire = DType::kFloat16;
  row.comparisons.push_back(Compare("bound", {1e-3}, {5e-4}));
  row.comparisons.back().note = "2 conn";
  const auto json = nlohmann::json::parse(RowJson(row));
  EXPECT_EQ(json["size"], 1'000'000);
  EXPECT_EQ(json["count"], 250'000);
  EXPECT_EQ(json["wire"], "float16");
  EXPECT_DOUBLE_EQ(json["time_us"], 1000);
  EXPECT_DOUBLE_EQ(json["bound"]["ratio"], 0.5);
  EXPECT_EQ(json["bound"]["note"], "2 conn");
}

}  // namespace
}  // namespace gradientflow::benchmarks
