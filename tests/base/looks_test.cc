#include "gradientflow/base/looks.h"

#include <gtest/gtest.h>

#include <chrono>

namespace gradientflow {
namespace {

using std::chrono::microseconds;

TEST(IntervalAfterTest, IsAThirtySecondOfTheWaitWithinItsBounds) {
  const Clock::Time shortest = microseconds(10);
  EXPECT_EQ(IntervalAfter(Clock::Time(0), shortest), shortest);
  EXPECT_EQ(IntervalAfter(microseconds(320), shortest), shortest);
  EXPECT_EQ(IntervalAfter(microseconds(640), shortest), microseconds(20));
  EXPECT_EQ(IntervalAfter(microseconds(1600), shortest), kLookInterval);
  EXPECT_EQ(IntervalAfter(std::chrono::hours(1), shortest), kLookInterval);
}

// How often a wait of `waited` asks if it looks at the clock every microsecond.
int QuestionsIn(Looks* looks, Clock::Time begin, Clock::Time waited) {
  looks->Begin();
  int questions = 0;
  for (Clock::Time at{}; at < waited; at += microseconds(1)) {
    questions += looks->Due(begin + at) ? 1 : 0;
  }
  return questions;
}

TEST(LooksTest, AShortWaitAsksEveryFiveMicroseconds) {
  Looks looks;
  EXPECT_EQ(QuestionsIn(&looks, microseconds(7), microseconds(100)), 20);
}

TEST(LooksTest, ALongWaitAsksEveryFiftyMicroseconds) {
  Looks looks;
  const Clock::Time begin = microseconds(7);
  const int early = QuestionsIn(&looks, begin, std::chrono::milliseconds(10));
  const int all = QuestionsIn(&looks, begin, std::chrono::milliseconds(20));
  EXPECT_EQ(all - early, 200);
}

TEST(LooksTest, ANewWaitAsksAtOnce) {
  Looks looks;
  EXPECT_TRUE(looks.Due(microseconds(100)));
  EXPECT_FALSE(looks.Due(microseconds(101)));
  looks.Begin();
  EXPECT_TRUE(looks.Due(microseconds(101)));
}

}  // namespace
}  // namespace gradientflow
