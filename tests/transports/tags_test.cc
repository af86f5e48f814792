#include "transports/tags.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace gradientflow {
namespace {

TEST(Tags, OfACollectiveKeepTheirFieldsApart) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 10000; ++i) {
    const int series = static_cast<int>(random() % 2);
    const std::uint64_t call = random();
    const std::uint64_t segment = random();
    const std::uint64_t ordinal = random();
    const Tag tag = CallTag(series, call, segment, ordinal);
    EXPECT_FALSE(IsPointToPoint(tag));
    EXPECT_EQ(SeriesOf(tag), static_cast<std::size_t>(series));
    EXPECT_EQ(CallOf(tag), call & kCallMask);
    // The ordinal alone does not change the lane.
    EXPECT_EQ(SegmentOf(tag), SegmentOf(CallTag(series, call, segment)));
    EXPECT_NE(SegmentOf(tag), SegmentOf(CallTag(series, call, segment + 1)));
    EXPECT_NE(tag, CallTag(series, call, segment, ordinal + 1));
  }
  // As wire_format.md has them.
  EXPECT_EQ(CallTag(1, 2, 3, 4), 0x4000000200003004U);
}

TEST(Tags, CallsAreOrderedAcrossTheWrapOfTheirNumbers) {
  for (const std::uint64_t call :
       {std::uint64_t{1}, kCallMask - 1, kCallMask, kCallMask + 1,
        kCallMask + 2, std::uint64_t{1} << 40}) {
    const std::uint64_t seen = CallOf(CallTag(0, call));
    EXPECT_TRUE(IsEarlierCall(CallOf(CallTag(0, call - 1)), call)) << call;
    EXPECT_TRUE(IsEarlierCall(seen, call + 1)) << call;
    EXPECT_TRUE(IsEarlierCall(seen, call + 1000)) << call;
    EXPECT_FALSE(IsEarlierCall(seen, call)) << call;
    EXPECT_FALSE(IsEarlierCall(CallOf(CallTag(0, call + 1)), call)) << call;
  }
}

TEST(Tags, OfMessagesNameAndNumberThem) {
  for (const std::uint32_t name :
       {0U, 7U, kNumberedTags - 1, kNumberedTags, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    const Tag tag = PointToPointTag(name, 5);
    EXPECT_TRUE(IsPointToPoint(tag));
    EXPECT_EQ(NamedTag(tag), name);
    EXPECT_EQ(IsNumberedByReceiver(tag), name >= kNumberedTags);
    EXPECT_EQ(WithNumber(tag, 0x80000009), PointToPointTag(name, 9));
  }
  EXPECT_FALSE(IsNumberedByReceiver(CallTag(1, kCallMask)));
}

}  // namespace
}  // namespace gradientflow
