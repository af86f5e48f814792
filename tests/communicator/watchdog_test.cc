#include "gradientflow/communicator/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/observe/logger.h"
#include "tests/communicator/fabrics.h"

// When a rank that waits complains, when it gives up, and what it says.
namespace gradientflow::testing {
namespace {

class Lines final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, const std::string& line) override {
    lines.push_back(line);
  }
  std::vector<std::string> lines;
};

class WatchdogTest : public ::testing::Test {
 protected:
  static WatchdogOptions OptionsOf(Logger* logger) {
    WatchdogOptions options;
    options.timeout_seconds = 10;
    options.stall_check_seconds = 3;
    options.logger = logger;
    return options;
  }
  // Rank 0 waits for ranks that do not come.
  void StartAlone() {
    CollectiveCall call;
    call.output = &value_;
    call.count = 1;
    ranks_.executor(0).Start(call, ended_.done());
  }
  // Ticks as a driver does, for so many seconds.
  void Tick(double seconds, bool waiting = true) {
    for (int tick = 0; tick < static_cast<int>(seconds * 10); ++tick) {
      ranks_.clock().Advance(std::chrono::milliseconds(100));
      ranks_.Poll(2);
      // The others live.
      for (int r = 1; r < 3; ++r) ranks_.fabric(r).Tick(false);
      watchdog_.Tick(waiting, moves_);
    }
  }
  const Status& job() { return ranks_.fabric(0).status(); }

  // Lent to a call that may end as late as with its executor.
  float value_ = 1;
  TransferEnding ended_;
  Fabrics ranks_{3};
  Lines log_;
  Watchdog watchdog_{OptionsOf(&log_), ranks_.fabric(0), ranks_.executor(0),
                     ranks_.clock()};
  std::uint64_t moves_ = 0;
};

TEST_F(WatchdogTest, EndsTheJobWhenACallHasStoodForTheTimeOutAndNoSooner) {
  StartAlone();
  Tick(9.8);
  EXPECT_TRUE(job().ok()) << job().ToString();
  Tick(0.5);
  EXPECT_EQ(job().code(), StatusCode::kDeadlineExceeded);
  ranks_.Poll();
  EXPECT_EQ(ended_.times, 1);
  EXPECT_EQ(ended_.status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(WatchdogTest, SaysWhoIsAwaitedAndWhatTheySayTheyDo) {
  ranks_.fabric(0).SetProgressText("in step 7");
  ranks_.fabric(1).SetProgressText("reading images");
  ranks_.fabric(2).SetProgressText("writing a checkpoint");
  StartAlone();
  Tick(10.5);
  const std::string& text = job().message();
  EXPECT_NE(text.find("rank 0 has waited 10"), std::string::npos) << text;
  EXPECT_NE(text.find("in step 7"), std::string::npos) << text;
  EXPECT_NE(text.find("awaited: rank "), std::string::npos) << text;
  EXPECT_NE(text.find("reading images"), std::string::npos) << text;
  EXPECT_NE(text.find("writing a checkpoint"), std::string::npos) << text;
}

TEST_F(WatchdogTest, ReportsAStallOnceInEachPeriod) {
  StartAlone();
  Tick(2.8);
  EXPECT_TRUE(log_.lines.empty()) << log_.lines[0];
  Tick(0.5);
  ASSERT_EQ(log_.lines.size(), 1U);
  EXPECT_EQ(log_.lines[0].rfind("stall: rank 0 has waited 3", 0), 0U)
      << log_.lines[0];
  Tick(3);
  EXPECT_EQ(log_.lines.size(), 2U);
}

TEST_F(WatchdogTest, KeepsQuietWhileNothingIsInFlight) {
  Tick(30, /*waiting=*/false);
  EXPECT_TRUE(job().ok());
  EXPECT_TRUE(log_.lines.empty());
  // The time before a wait does not count.
  StartAlone();
  Tick(2.5);
  EXPECT_TRUE(log_.lines.empty());
}

TEST_F(WatchdogTest, KeepsQuietWhileSomethingMovesElsewhere) {
  for (int second = 0; second < 30; ++second) {
    ++moves_;
    Tick(1);
  }
  EXPECT_TRUE(job().ok()) << job().ToString();
  EXPECT_TRUE(log_.lines.empty());
}

TEST_F(WatchdogTest, SeesACallThatStandsWhileSomethingElseMoves) {
  StartAlone();
  for (int second = 0; second < 11; ++second) {
    ++moves_;
    Tick(1);
  }
  EXPECT_EQ(job().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace gradientflow::testing
