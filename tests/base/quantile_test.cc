#include "gradientflow/base/quantile.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace gradientflow::testing {
namespace {

TEST(Quantile, LiesBetweenTwoValuesWhereItFallsBetween) {
  const std::vector<double> four = {5, 1, 4, 2};
  EXPECT_EQ(Quantile(four, 0), 1);
  EXPECT_EQ(Quantile(four, 1), 5);
  EXPECT_EQ(Quantile(four, 0.5), 3);
  EXPECT_EQ(Quantile({5, 1, 4}, 0.5), 4);
  EXPECT_EQ(Quantile({1, 2, 4}, 0.75), 3);
  EXPECT_EQ(Quantile({7}, 0.99), 7);
  EXPECT_EQ(Quantile({}, 0.5), 0);
}

TEST(Quantile, MayBeInfinite) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Quantile({2, infinite, infinite}, 0.75), infinite);
}

}  // namespace
}  // namespace gradientflow::testing
