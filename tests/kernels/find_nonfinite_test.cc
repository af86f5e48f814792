#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

constexpr std::uint32_t kBefore = 7;

class FindNonfinite : public EveryTable {
 protected:
  // Returns the flag after the call.
  std::uint32_t Run(const Elements& src) {
    Scalar<std::uint32_t> flag(kBefore);
    EXPECT_EQ(kernels().find_nonfinite(
                  {src.data(), src.type(), src.size(), flag.get()}, nullptr),
              0);
    return *flag;
  }
};

GRADIENTFLOW_FOR_EVERY_TABLE(FindNonfinite);

TEST_P(FindNonfinite, LeavesTheFlagAloneIfAllIsFinite) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      for (std::size_t offset = 0; offset < 9; ++offset) {
        Elements src(type, n, offset);
        src.Fill(random_);
        ASSERT_EQ(Run(src), kBefore) << n;
      }
    }
  }
}

TEST_P(FindNonfinite, FindsOneWhereverItIs) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      for (std::size_t i = 0; i < n; i += 1 + n / 20) {
        Elements src(type, n, random_() % 9);
        src.Fill(random_);
        const double values[] = {kInf, -kInf, kNan};
        src.Set(i, values[i % 3]);
        ASSERT_EQ(Run(src), 1U) << i << " of " << n;
      }
    }
  }
}

// Only the exponent decides, whatever sign and mantissa are.
TEST_P(FindNonfinite, TellsAllHalvesApart) {
  for (const auto& [type, mask] : {std::pair(DType::kFloat16, 0x7C00U),
                                   std::pair(DType::kBFloat16, 0x7F80U)}) {
    Elements finite(type, 0x10000);
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      finite.SetBits(bits, (bits & mask) == mask ? 0 : bits);
    }
    ASSERT_EQ(Run(finite), kBefore);
    Elements one(type, 1);
    for (unsigned mantissa = 0; mantissa < (~mask & 0x7FFF); mantissa += 13) {
      one.SetBits(0, mask | mantissa | (mantissa % 2 << 15));
      ASSERT_EQ(Run(one), 1U) << mantissa;
    }
  }
}

TEST_P(FindNonfinite, RefusesOtherTypes) {
  const Elements src(DType::kFloat64, 4);
  Scalar<std::uint32_t> flag(kBefore);
  EXPECT_NE(kernels().find_nonfinite(
                {src.data(), src.type(), src.size(), flag.get()}, nullptr),
            0);
  EXPECT_EQ(*flag, kBefore);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
