#include <vector>

#include "benchmarks/allreduce/sizes.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

using Bytes = std::vector<std::size_t>;

TEST(Sizes, GoFromMinToMaxByFactor) {
  EXPECT_EQ(Sizes(4096, 1 << 20, 16, 4).value(), (Bytes{4096, 65536, 1 << 20}));
  EXPECT_EQ(Sizes(4096, 70000, 16, 4).value(), (Bytes{4096, 65536}));
}

TEST(Sizes, AreWholeElementsAndNoneTwice) {
  EXPECT_EQ(Sizes(1, 30, 1.5, 8).value(), (Bytes{8, 16, 24}));
}

TEST(Sizes, OneSizeWhenMinIsMax) {
  EXPECT_EQ(Sizes(1 << 27, 1 << 27, 2, 4).value(), (Bytes{1 << 27}));
}

TEST(Sizes, RefuseWhatHasNoEndOrNoElement) {
  EXPECT_FALSE(Sizes(4, 64, 1, 4).ok());
  EXPECT_FALSE(Sizes(64, 4, 2, 4).ok());
  EXPECT_FALSE(Sizes(1, 3, 2, 4).ok());
}

TEST(IterationsFor, AreFewForLargeAndManyForSmall) {
  EXPECT_EQ(IterationsFor(128 << 20), 3);
  EXPECT_EQ(IterationsFor(0), 1000);
  EXPECT_EQ(IterationsFor(1 << 20), 64);
}

}  // namespace
}  // namespace gradientflow::benchmarks
