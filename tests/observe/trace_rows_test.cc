#include "gradientflow/observe/trace_rows.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradientflow {
namespace {

Span Bar(const char* lane, int begin, int end) {
  Span span;
  span.lane = lane;
  span.begin = Clock::Time(begin);
  span.end = Clock::Time(end);
  return span;
}

TEST(TraceRows, OneRowWhereNothingOverlaps) {
  TraceRows rows;
  const TraceRows::Row first = rows.Place(Bar("bucket", 0, 10));
  EXPECT_TRUE(first.is_new);
  EXPECT_EQ(first.name, "bucket");
  const TraceRows::Row second = rows.Place(Bar("bucket", 10, 20));
  EXPECT_FALSE(second.is_new);
  EXPECT_EQ(second.number, first.number);
}

TEST(TraceRows, BarsThatOverlapGetRowsOfTheirOwnAndGiveThemBack) {
  TraceRows rows;
  const int first = rows.Place(Bar("bucket", 0, 10)).number;
  const TraceRows::Row second = rows.Place(Bar("bucket", 5, 12));
  EXPECT_TRUE(second.is_new);
  EXPECT_EQ(second.name, "bucket 2");
  EXPECT_NE(second.number, first);
  EXPECT_EQ(rows.Place(Bar("bucket", 12, 20)).number, first);
}

TEST(TraceRows, LanesDoNotShareRows) {
  TraceRows rows;
  EXPECT_NE(rows.Place(Bar("a", 0, 1)).number,
            rows.Place(Bar("b", 0, 1)).number);
}

TEST(TraceRows, NoTwoBarsOfARowOverlapForRandomOnes) {
  std::mt19937 random(3);
  std::vector<Span> spans;
  for (int i = 0; i < 500; ++i) {
    const int begin = static_cast<int>(random() % 2000);
    spans.push_back(
        Bar("x", begin, begin + 1 + static_cast<int>(random() % 50)));
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.end < b.end; });
  TraceRows rows;
  std::map<int, std::vector<std::pair<Clock::Time, Clock::Time>>> placed;
  for (const Span& span : spans) {
    auto& bars = placed[rows.Place(span).number];
    for (const auto& [begin, end] : bars) {
      ASSERT_TRUE(end <= span.begin || span.end <= begin);
    }
    bars.emplace_back(span.begin, span.end);
  }
  EXPECT_GT(placed.size(), 1U);
}

TEST(TraceRows, NumbersStayUniqueHoweverManyOverlap) {
  TraceRows rows;
  std::map<int, std::string> names;
  for (int i = 0; i < 1000; ++i) {
    for (const char* lane : {"a", "b"}) {
      const TraceRows::Row row = rows.Place(Bar(lane, 0, 10));
      const auto [found, is_new] = names.emplace(row.number, row.name);
      EXPECT_EQ(is_new, row.is_new);
      EXPECT_EQ(found->second, row.name);
    }
  }
  EXPECT_LE(names.size(), 128U);
}

}  // namespace
}  // namespace gradientflow
