#include "gradientflow/config/text_values.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/config/options.h"
#include "gtest/gtest.h"

namespace gradientflow {
namespace {

TEST(ParseBytes, UnitsAreBinaryWhateverTheirSpelling) {
  for (const char* text : {"65536", "64K", "64KB", "64KiB", "64kb", "65536B"}) {
    EXPECT_EQ(ParseBytes(text), 65536U) << text;
  }
  EXPECT_EQ(ParseBytes("0"), 0U);
  EXPECT_EQ(ParseBytes("16MB"), std::size_t{16} << 20);
  EXPECT_EQ(ParseBytes("1GB"), std::size_t{1} << 30);
  EXPECT_EQ(ParseBytes("2TiB"), std::size_t{2} << 40);
  EXPECT_EQ(ParseBytes("auto"), kAutoBytes);
  EXPECT_EQ(ParseBytes("INF"), kInfiniteBytes);
}

TEST(ParseBytes, RefusesWhatIsNotAWholeSize) {
  for (const char* text :
       {"", " ", "K", "KB", "-1", "+1", "1.5MB", "1 KB", " 1", "1 ", "0x10",
        "1KBs", "1kk", "1e3", "nan", "infinity", "64XB", "1KiBB",
        // The two numbers that mean auto and inf, and larger ones.
        "18446744073709551615", "18446744073709551614", "18446744073709551616",
        "16777216TB", "99999999999999999999GB"}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseBytes("18446744073709551613"), kAutoBytes - 1);
}

TEST(PrintBytes, UsesTheLargestUnitThatDivides) {
  EXPECT_EQ(PrintBytes(0), "0");
  EXPECT_EQ(PrintBytes(4097), "4097");
  EXPECT_EQ(PrintBytes(std::size_t{256} << 10), "256KB");
  EXPECT_EQ(PrintBytes(std::size_t{1536} << 20), "1536MB");
  EXPECT_EQ(PrintBytes(std::size_t{64} << 30), "64GB");
  EXPECT_EQ(PrintBytes(kAutoBytes), "auto");
  EXPECT_EQ(PrintBytes(kInfiniteBytes), "inf");
}

TEST(PrintBytes, ParsesBackToTheSameNumber) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t bytes = (random() >> random() % 64) << random() % 41;
    EXPECT_EQ(ParseBytes(PrintBytes(bytes)), bytes);
  }
}

TEST(ParseNumbers, TakeTheWholeTextOrNothing) {
  EXPECT_EQ(ParseUnsigned("18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(ParseFloat("0.1"), 0.1F);
  EXPECT_EQ(ParseDouble("1e-3"), 1e-3);
  for (const char* text : {"", "1x", " 1", "1 ", "+1", "0x1", "one", "1,5"}) {
    EXPECT_EQ(ParseUnsigned(text), std::nullopt) << text;
    EXPECT_EQ(ParseDouble(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseUnsigned("-1"), std::nullopt);
}

TEST(ParseNumbers, RefuseNanInfinityAndOverflow) {
  for (const char* text :
       {"nan", "NaN", "-nan", "nan(1)", "inf", "-inf", "infinity", "1e999"}) {
    EXPECT_EQ(ParseDouble(text), std::nullopt) << text;
    EXPECT_EQ(ParseFloat(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseFloat("1e39"), std::nullopt);
  EXPECT_TRUE(ParseDouble("1e39"));
}

TEST(PrintFloat, IsShortAndExact) {
  EXPECT_EQ(PrintFloat(0.9F), "0.9");
  EXPECT_EQ(PrintDouble(600), "600");
  std::mt19937 random(11);
  std::uniform_real_distribution<float> values(-1e6F, 1e6F);
  for (int i = 0; i < 1000; ++i) {
    const float value = values(random);
    EXPECT_EQ(ParseFloat(PrintFloat(value)), value);
  }
}

TEST(ParseBool, KnowsEightWordsInAnyCase) {
  for (const char* text : {"1", "on", "ON", "true", "True", "yes"}) {
    EXPECT_EQ(ParseBool(text), true) << text;
  }
  for (const char* text : {"0", "off", "Off", "false", "FALSE", "no"}) {
    EXPECT_EQ(ParseBool(text), false) << text;
  }
  for (const char* text : {"", "2", "o", "truee", "on "}) {
    EXPECT_EQ(ParseBool(text), std::nullopt) << text;
  }
}

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(EditDistance("", ""), 0U);
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("abc", ""), 3U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
  EXPECT_EQ(EditDistance("overlap", "ovrelap"), 2U);
}

TEST(HashText, IsFnv1a) {
  EXPECT_EQ(HashText(""), 0xCBF29CE484222325U);
  EXPECT_EQ(HashText("a"), 0xAF63DC4C8601EC8CU);
  EXPECT_EQ(HashText("foobar"), 0x85944171F73967E8U);
}

TEST(IsRendezvous, TakesAddressesAndDirectories) {
  for (const char* text :
       {"node1:29500", "10.0.0.1:1", "localhost:65535", "[::1]:29500",
        "[fe80::1%eth0]:5", "file:///shared/job", "file:///x"}) {
    EXPECT_TRUE(IsRendezvous(text)) << text;
  }
  for (const char* text :
       {"", "node1", "node1:", ":29500", "node1:0", "node1:65536", "node1:x",
        "::1:29500", "[]:1", "[::1]", "[::1:5", "a b:1", "file://", "file:///",
        "file://host/x", "http://host/x", "node1:-1", "node1: 1"}) {
    EXPECT_FALSE(IsRendezvous(text)) << text;
  }
}

}  // namespace
}  // namespace gradientflow
