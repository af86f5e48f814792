#include "benchmarks/scaling/table.h"

#include <string>
#include <vector>

#include "benchmarks/training/report.h"
#include "gradientflow/config/options.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({8, 2, 4, 100}), 6);
}

StepSample Sample(double iteration, double exposed, double hidden) {
  StepSample sample;
  sample.iteration_seconds = iteration;
  sample.exposed_seconds = exposed;
  sample.hidden_seconds = hidden;
  sample.bytes_sent = 1000;
  sample.base_seconds = iteration / 2;
  return sample;
}

TEST(Combine, TakesTheSlowestRankOfEachStepThenTheMedianOverSteps) {
  // Slowest per step: 0.5, 0.3, 0.9; means of exposed: 2, 4, 6.
  const Row row =
      Combine({{Sample(0.5, 1, 3), Sample(0.2, 4, 3), Sample(0.1, 5, 3)},
               {Sample(0.4, 3, 5), Sample(0.3, 4, 5), Sample(0.9, 7, 5)}});
  EXPECT_EQ(row.ranks, 2);
  EXPECT_DOUBLE_EQ(row.iteration_seconds, 0.5);
  EXPECT_DOUBLE_EQ(row.base_seconds, 0.25);
  EXPECT_DOUBLE_EQ(row.exposed_seconds, 4);
  EXPECT_DOUBLE_EQ(row.hidden_seconds, 4);
  EXPECT_DOUBLE_EQ(row.bytes_sent, 1000);
  EXPECT_DOUBLE_EQ(row.hidden_share(), 0.5);
}

TEST(Row, SpeedUpIsImagesPerSecondAgainstOneRank) {
  Row row;
  row.ranks = 4;
  row.batch = 128;
  row.iteration_seconds = 0.05;
  row.base_seconds = 0.04;
  EXPECT_DOUBLE_EQ(row.images_per_second(), 10240);
  EXPECT_DOUBLE_EQ(row.speedup(), 3.2);
}

TEST(Row, GainIsAgainstTheFirstModesIteration) {
  Row row;
  row.iteration_seconds = 0.2;
  row.first_iteration_seconds = 2.2;
  EXPECT_DOUBLE_EQ(row.gain(), 11);
}

TEST(Row, HiddenShareNeedsCommunication) {
  Row row;
  row.hidden_seconds = 3;
  row.exposed_seconds = 1;
  EXPECT_EQ(row.hidden_share(), -1);
  row.bytes_sent = 10;
  EXPECT_DOUBLE_EQ(row.hidden_share(), 0.75);
  row.hidden_seconds = 0;
  EXPECT_DOUBLE_EQ(row.hidden_share(), 0);
  row.exposed_seconds = 0;
  EXPECT_EQ(row.hidden_share(), -1);
}

Row Example() {
  Row row;
  row.model = "alexnet_bn";
  row.mode = "csc";
  row.label = "+ CSC 85 %";
  row.fabric = "tcp";
  row.ranks = 2;
  row.batch = 128;
  row.iteration_seconds = 0.040;
  row.exposed_seconds = 0.001;
  row.hidden_seconds = 0.009;
  row.bytes_sent = 9.1e6;
  row.bucket_bytes = 4 << 20;
  row.buckets = 3;
  row.first_iteration_seconds = 0.46;
  row.base_seconds = 0.04;
  return row;
}

TEST(RowLine, HasItsColumnsUnderTheHeader) {
  EXPECT_EQ(RowLine(Example()).size(), RowHeader().size());
  EXPECT_EQ(
      RowLine(Example()),
      "alexnet_bn   + CSC 85 %            2         40.00      6400"
      "      2.00  11.5x        1.00   90.0%          9.10   4.0MB        3\n");
}

TEST(RowLine, SaysAllForAnInfiniteBucketAndNothingForNoCommunication) {
  Row row = Example();
  row.bucket_bytes = static_cast<double>(kInfiniteBytes);
  EXPECT_NE(RowLine(row).find("   all"), std::string::npos);
  row.bytes_sent = 0;
  EXPECT_EQ(RowLine(row).find('%', RowLine(row).find("85 %") + 4),
            std::string::npos);
}

TEST(RowJson, IsOneLineWithEveryColumn) {
  const std::string text = RowJson(Example());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["model"], "alexnet_bn");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_DOUBLE_EQ(json["iteration_ms"].get<double>(), 40);
  EXPECT_DOUBLE_EQ(json["speedup"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(json["hidden_share"].get<double>(), 0.9);
  EXPECT_DOUBLE_EQ(json["bytes_per_rank_per_step"].get<double>(), 9.1e6);
}

TEST(Samples, SurviveTheWayToTheParent) {
  const CellSamples sent = {{Sample(0.1, 0.2, 0.3)}, {}};
  const auto received = UnpackSamples(PackSamples(sent));
  ASSERT_TRUE(received.ok());
  ASSERT_EQ(received.value().size(), 2U);
  ASSERT_EQ(received.value()[0].size(), 1U);
  EXPECT_TRUE(received.value()[1].empty());
  EXPECT_EQ(received.value()[0][0].hidden_seconds, 0.3);
  EXPECT_EQ(received.value()[0][0].bytes_sent, 1000);
  EXPECT_EQ(received.value()[0][0].base_seconds, 0.05);
  EXPECT_FALSE(UnpackSamples("[[[0.1").ok());
}

TEST(Summarise, TakesMeansAndTheDeviationOfTheSeeds) {
  TrainingResult one;
  one.train_loss = 0.1;
  one.test_accuracy = 0.98;
  one.bytes_per_step = 100;
  one.seconds = 1;
  one.identical = true;
  TrainingResult two = one;
  two.test_accuracy = 0.96;
  two.train_loss = 0.3;
  two.bytes_per_step = 300;
  Summary summary = Summarise("x", {{one, one}, {two, two}});
  EXPECT_EQ(summary.ranks, 2);
  EXPECT_NEAR(summary.accuracy, 0.97, 1e-12);
  EXPECT_NEAR(summary.accuracy_sd, 0.0141421356, 1e-9);
  EXPECT_NEAR(summary.train_loss, 0.2, 1e-12);
  EXPECT_NEAR(summary.bytes_per_step, 200, 1e-12);
  EXPECT_TRUE(summary.identical);
  two.identical = false;
  summary = Summarise("x", {{one, one}, {one, two}});
  EXPECT_FALSE(summary.identical);
}

TEST(SummaryLine, ShowsTheChangeInPointsAndTheSavingInBytes) {
  Summary base;
  base.ranks = 4;
  base.accuracy = 0.98;
  base.bytes_per_step = 1330;
  Summary sparse = base;
  sparse.name = "CSC 85 % + FP16";
  sparse.accuracy = 0.976;
  sparse.bytes_per_step = 100;
  const std::string line = SummaryLine(sparse, base);
  EXPECT_NE(line.find("-0.40"), std::string::npos) << line;
  EXPECT_NE(line.find("13.3x"), std::string::npos) << line;
  EXPECT_NE(line.find("identical"), std::string::npos) << line;
  sparse.identical = false;
  EXPECT_NE(SummaryLine(sparse, base).find("DIFFERENT"), std::string::npos);
}

}  // namespace
}  // namespace gradientflow::benchmarks
