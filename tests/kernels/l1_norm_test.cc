#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

class L1Norm : public EveryCpuTable {
 protected:
  int Run(const Elements& src, float scale, float* norm) {
    return kernels().l1_norm({src.data(), src.type(), src.size(), scale, norm},
                             nullptr);
  }

  void ExpectOracle(DType type, std::size_t n) {
    Elements src(type, n, n % 6);
    src.Fill(random_);
    double exact = 0;
    for (std::size_t i = 0; i < n; ++i) exact += std::fabs(src.Get(i));
    Scalar<float> norm(1);
    ASSERT_EQ(Run(src, 0.25f, norm.get()), 0);
    EXPECT_LE(FloatUlps(*norm, 1 + exact * 0.25), NormUlpBound(n)) << n;
  }
};

GRADIENTFLOW_FOR_EVERY_CPU_TABLE(L1Norm);

TEST_P(L1Norm, StaysWithinItsBoundForAllTypesAndSizes) {
  for (const DType type : kGradientTypes) {
    for (std::size_t n = 0; n < 200; ++n) ExpectOracle(type, n);
    for (const std::size_t n : {4095, 8192, 8193, 32000, 1000003}) {
      ExpectOracle(type, n);
    }
  }
}

// Ones sum exactly: an element that is left out or counted twice is noticed.
TEST_P(L1Norm, CountsEveryElementOnce) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : {1, 63, 64, 65, 8191, 8192, 8257, 100003}) {
      Elements src(type, n);
      for (std::size_t i = 0; i < n; ++i) src.Set(i, i % 2 == 0 ? 1 : -1);
      Scalar<float> norm;
      ASSERT_EQ(Run(src, 1, norm.get()), 0);
      EXPECT_EQ(*norm, static_cast<float>(n));
    }
  }
}

TEST_P(L1Norm, AddsNothingForNoElements) {
  Scalar<float> norm(3);
  ASSERT_EQ(
      kernels().l1_norm({nullptr, DType::kFloat32, 0, 1, norm.get()}, nullptr),
      0);
  EXPECT_EQ(*norm, 3);
}

TEST_P(L1Norm, RepeatsBitForBitAtAnyAddress) {
  Elements src(DType::kFloat32, 20011);
  src.Fill(random_);
  Scalar<float> first;
  ASSERT_EQ(Run(src, 1, first.get()), 0);
  for (std::size_t shift = 1; shift < 16; ++shift) {
    Elements shifted(DType::kFloat32, src.size(), shift);
    for (std::size_t i = 0; i < src.size(); ++i) {
      shifted.SetBits(i, src.Bits(i));
    }
    Scalar<float> norm;
    ASSERT_EQ(Run(shifted, 1, norm.get()), 0);
    EXPECT_EQ(*norm, *first);
  }
}

TEST_P(L1Norm, CarriesANanOrAnInfinity) {
  Elements src(DType::kFloat16, 100);
  src.Fill(random_);
  src.Set(90, -INFINITY);
  Scalar<float> norm;
  ASSERT_EQ(Run(src, 1, norm.get()), 0);
  EXPECT_EQ(*norm, INFINITY);
  src.Set(91, NAN);
  ASSERT_EQ(Run(src, 1, norm.get()), 0);
  EXPECT_TRUE(std::isnan(*norm));
}

TEST_P(L1Norm, RefusesOtherTypes) {
  const Elements src(DType::kInt32, 4);
  Scalar<float> norm;
  EXPECT_NE(Run(src, 1, norm.get()), 0);
  EXPECT_EQ(*norm, 0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
