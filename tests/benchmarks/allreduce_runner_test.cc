#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/allreduce/runner.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

RunSettings Small(const char* fabric, int ranks) {
  RunSettings settings;
  settings.group.fabric = fabric;
  settings.group.ranks = ranks;
  settings.sizes = {4, 4000, 400000};
  settings.algorithms = {nullptr};
  settings.iterations = 2;
  settings.warmup = 0;
  settings.rounds = 2;
  return settings;
}

std::vector<Row> RowsOf(const RunSettings& settings) {
  std::vector<Row> rows;
  const Status status =
      RunAllreduces(settings, [&](const Row& row) { rows.push_back(row); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return rows;
}

void ExpectNoChildren() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(RunAllreduces, TimesAndChecksOursAndTheBareLoop) {
  RunSettings settings = Small("shm", 3);
  settings.bound = true;
  const std::vector<Row> rows = RowsOf(settings);
  ASSERT_EQ(rows.size(), 3U);
  for (const Row& row : rows) {
    EXPECT_EQ(row.wrong, 0U);
    EXPECT_GT(row.seconds, 0);
    ASSERT_EQ(row.comparisons.size(), 1U);
    EXPECT_EQ(row.comparisons[0].name, "bound");
    EXPECT_GT(row.comparisons[0].seconds, 0);
  }
  EXPECT_EQ(rows[2].batch.bytes, 400000U);
  ExpectNoChildren();
}

TEST(RunAllreduces, TimesAndChecksOursAndTheBareExchange) {
  RunSettings settings = Small("tcp", 2);
  settings.bound = true;
  for (const Row& row : RowsOf(settings)) {
    EXPECT_EQ(row.wrong, 0U);
    ASSERT_EQ(row.comparisons.size(), 1U);
    EXPECT_NE(row.comparisons[0].note.find("conn"), std::string::npos);
  }
  ExpectNoChildren();
}

TEST(RunAllreduces, EveryAlgorithmHasItsRow) {
  RunSettings settings = Small("tcp", 2);
  settings.sizes = {1234 * 4};
  settings.group.plain = true;
  settings.algorithms = {&allreduce::kRing, &allreduce::kTwoSync};
  const std::vector<Row> rows = RowsOf(settings);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].algorithm, "ring");
  EXPECT_EQ(rows[1].algorithm, "two_sync");
}

TEST(RunAllreduces, BareExchangeOfThreeRanksIsRefused) {
  RunSettings settings = Small("tcp", 3);
  settings.bound = true;
  const Status status = RunAllreduces(settings, [](const Row&) {});
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  ExpectNoChildren();
}

// Answers with its rank, `wrong` where told so.
class Fake final : public Worker {
 public:
  explicit Fake(int rank) : rank_(rank) {}
  Result<Outcome> Run(const Batch& batch) override {
    if (batch.op == ReduceOp::kMax) _exit(1);
    if (batch.op == ReduceOp::kMin && rank_ == 1) {
      return Status(StatusCode::kUnavailable, "rank 1 has\nno peer");
    }
    return Outcome{1.0 + rank_, batch.check ? 10U : 0U};
  }

 private:
  const int rank_;
};

Result<std::unique_ptr<Group>> FakeGroup(const std::string& folder) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    programs.push_back({[rank, folder] {
                          return Serve(SocketPath(folder, "fake"), [&] {
                            return Result<std::unique_ptr<Worker>>(
                                std::make_unique<Fake>(rank));
                          });
                        },
                        {}});
  }
  return Group::Start(folder, "fake", 3, programs);
}

std::string Folder(const char* name) {
  // Short: a socket's path has room for a hundred bytes only.
  std::string folder = std::string("/tmp/") + name + "XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

TEST(Group, TellsTheSlowestTimeAndAllWrongElements) {
  auto group = FakeGroup(Folder("slowest"));
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  Batch batch;
  batch.check = true;
  const auto outcome = group.value()->Run(batch);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_EQ(outcome.value().seconds, 3);
  EXPECT_EQ(outcome.value().wrong, 30U);
}

TEST(Group, RanksErrorAndRanksDeathAreErrors) {
  auto group = FakeGroup(Folder("errors"));
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  Batch batch;
  batch.op = ReduceOp::kMin;
  EXPECT_EQ(group.value()->Run(batch).status().message(),
            "fake: UNAVAILABLE: rank 1 has no peer");
  batch.op = ReduceOp::kMax;
  EXPECT_EQ(group.value()->Run(batch).status().code(),
            StatusCode::kUnavailable);
  group.value().reset();
  ExpectNoChildren();
}

TEST(Group, ProgramThatEndsBeforeItReportsIsAnError) {
  const auto group =
      Group::Start(Folder("early"), "fake", 1, {{[] { return 1; }, {}}});
  EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
  ExpectNoChildren();
}

TEST(Batch, SurvivesTheWay) {
  Batch batch;
  batch.bytes = 12345678901;
  batch.dtype = DType::kBFloat16;
  batch.wire = DType::kFloat16;
  batch.op = ReduceOp::kMean;
  batch.algorithm = &allreduce::kTwoLevel;
  batch.way = 4;
  batch.warmup = 3;
  batch.iterations = 17;
  batch.check = true;
  const auto decoded = DecodeBatch(Encode(batch));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(Encode(decoded.value()), Encode(batch));
  EXPECT_EQ(decoded.value().bytes, 12345678901U);
  EXPECT_FALSE(DecodeBatch("12 float32 float32 sum auto 1 2").ok());
  EXPECT_FALSE(DecodeOutcome("ok 1").ok());
}

}  // namespace
}  // namespace gradientflow::benchmarks
