#include "transports/liveness.h"

#include <gtest/gtest.h>

#include <chrono>

#include "gradientflow/base/manual_clock.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LivenessTest : public ::testing::Test {
 protected:
  // Ticks each 100 ms. Returns how often peers should have got a sign of life.
  int TickFor(milliseconds time) {
    int beats = 0;
    for (milliseconds gone(0); gone < time; gone += milliseconds(100)) {
      clock_.Advance(milliseconds(100));
      if (peers_.Tick()) ++beats;
    }
    return beats;
  }

  ManualClock clock_{seconds(1000)};
  Liveness peers_{clock_, 3, seconds(10)};
  const Status broken_{StatusCode::kUnavailable, "rank 2 is gone"};
};

TEST_F(LivenessTest, APeerIsSilentOnceNoSignHasComeForTheTimeout) {
  for (int r = 0; r < 3; ++r) peers_.Heard(r);
  TickFor(seconds(6));
  peers_.Heard(1);
  TickFor(seconds(4));
  EXPECT_FALSE(peers_.IsSilent(0));
  TickFor(milliseconds(100));
  EXPECT_TRUE(peers_.IsSilent(0));
  EXPECT_FALSE(peers_.IsSilent(1));
  EXPECT_EQ(peers_.SilenceOf(0), milliseconds(10100));
}

TEST_F(LivenessTest, OnlyANewBeatIsASignOfLife) {
  for (int r = 0; r < 3; ++r) peers_.Heard(r);
  TickFor(seconds(8));
  peers_.CountBeats(0, 1);
  peers_.CountBeats(1, 0);
  TickFor(seconds(3));
  EXPECT_FALSE(peers_.IsSilent(0));
  EXPECT_TRUE(peers_.IsSilent(1));
  TickFor(seconds(8));
  peers_.CountBeats(0, 1);
  EXPECT_TRUE(peers_.IsSilent(0)) << "the same beat as before";
}

TEST_F(LivenessTest, BlamesNobodyForTheTimeThatThisRankWasStopped) {
  for (int r = 0; r < 3; ++r) peers_.Heard(r);
  TickFor(seconds(1));
  clock_.Advance(seconds(60));
  peers_.Tick();
  EXPECT_FALSE(peers_.IsSilent(0));
  TickFor(milliseconds(10100));
  EXPECT_TRUE(peers_.IsSilent(0));
}

TEST_F(LivenessTest, FiveSignsOfLifeArePassedOnInTheTimeout) {
  // A tick is 100 ms, and a sign follows the first one after 2 s.
  EXPECT_EQ(TickFor(milliseconds(10500)), 5);
}

TEST_F(LivenessTest, IsConvincedWhenTheTimeForOtherNewsIsOver) {
  EXPECT_FALSE(peers_.suspects());
  peers_.Suspect(2, broken_, milliseconds(150));
  EXPECT_TRUE(peers_.suspects());
  EXPECT_FALSE(peers_.IsConvinced());
  clock_.Advance(milliseconds(150));
  EXPECT_TRUE(peers_.IsConvinced());
  EXPECT_EQ(peers_.suspicion().message(), broken_.message());
}

TEST_F(LivenessTest, TheSuspicionThatIsDueFirstCounts) {
  const Status later(StatusCode::kUnavailable, "rank 1 is gone");
  peers_.Suspect(2, broken_, milliseconds(500));
  peers_.Suspect(1, later, milliseconds(500));
  EXPECT_EQ(peers_.suspicion().message(), broken_.message());
  peers_.Suspect(1, later, milliseconds(150));
  EXPECT_EQ(peers_.suspicion().message(), later.message());
}

TEST_F(LivenessTest, OnlyTheSuspectIsAcquitted) {
  EXPECT_FALSE(peers_.Acquit(0)) << "nobody is suspected";
  peers_.Suspect(2, broken_, milliseconds(150));
  EXPECT_FALSE(peers_.Acquit(1));
  EXPECT_TRUE(peers_.suspects());
  EXPECT_TRUE(peers_.Acquit(2));
  EXPECT_FALSE(peers_.suspects());
}

}  // namespace
}  // namespace gradientflow
