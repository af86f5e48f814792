#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

class SumSquares : public EveryCpuTable {
 protected:
  int Run(const Elements& src, double* sum) {
    return kernels().sum_squares({src.data(), src.type(), src.size(), sum},
                                 nullptr);
  }
};

GRADIENTFLOW_FOR_EVERY_CPU_TABLE(SumSquares);

TEST_P(SumSquares, AgreesWithALongDoubleSum) {
  for (const DType type : kGradientTypes) {
    for (std::size_t n = 0; n < 300; ++n) {
      const std::size_t size = n < 200 ? n : n * 37;
      Elements src(type, size, n % 6);
      src.Fill(random_);
      long double exact = 0.5L;
      for (std::size_t i = 0; i < size; ++i) {
        exact += static_cast<long double>(src.Get(i)) * src.Get(i);
      }
      Scalar<double> sum(0.5);
      ASSERT_EQ(Run(src, sum.get()), 0);
      // All terms are positive: half a unit in the last place per addition.
      const double bound =
          static_cast<double>(size + 1) * 0x1p-53 * static_cast<double>(exact);
      EXPECT_NEAR(*sum, static_cast<double>(exact), bound) << size;
    }
  }
}

TEST_P(SumSquares, AddsInTheOneOrderOfAllTables) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n :
         {1,    3,    31,   32,   33,   127,   511,   512,   513,   1009,
          1535, 2047, 2048, 2049, 6151, 16384, 16385, 20011, 65537, 99991}) {
      Elements src(type, n, n % 6);
      src.Fill(random_);
      Scalar<double> sum(0);
      ASSERT_EQ(Run(src, sum.get()), 0);
      ASSERT_EQ(*sum, SquaresInOrder(src, 0, n)) << n;
    }
  }
}

TEST_P(SumSquares, AddsInOneOrderBeyondAThousandBlocks) {
  Elements src(DType::kFloat32, 2 * 1024 * 512 + 3 * 512 + 77, 1);
  src.Fill(random_);
  Scalar<double> sum(0);
  ASSERT_EQ(Run(src, sum.get()), 0);
  EXPECT_EQ(*sum, SquaresInOrder(src, 0, src.size()));
}

TEST_P(SumSquares, CountsEveryElementOnceEvenWhereAFloat32WouldOverflow) {
  Elements src(DType::kFloat32, 1234);
  for (std::size_t i = 0; i < src.size(); ++i) src.Set(i, -0x1p100);
  Scalar<double> sum;
  ASSERT_EQ(Run(src, sum.get()), 0);
  EXPECT_EQ(*sum, 1234 * 0x1p200);
}

TEST_P(SumSquares, RefusesOtherTypes) {
  const Elements src(DType::kFloat64, 4);
  Scalar<double> sum;
  EXPECT_NE(Run(src, sum.get()), 0);
  EXPECT_EQ(*sum, 0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
