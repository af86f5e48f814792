#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/types.h"
#include "tests/cuda_shim/include/cuda_bf16.h"
#include "tests/cuda_shim/include/cuda_fp16.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::cuda_shim {
namespace {

using kernels::DType;
using kernels::testing::Elements;

float Widen(unsigned bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
unsigned Narrow(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

TEST(Half, WidensAllHalvesExactly) {
  Elements half(DType::kFloat16, 1);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    half.SetBits(0, bits);
    const double expected = half.Get(0);
    if (std::isnan(expected)) {
      ASSERT_EQ(__float_as_uint(Widen(bits)), 0x7FFFFFFFU) << bits;
    } else {
      ASSERT_EQ(Widen(bits), expected) << bits;
      ASSERT_EQ(std::signbit(Widen(bits)), std::signbit(expected)) << bits;
    }
  }
}

void ExpectOracle(float value) {
  Elements half(DType::kFloat16, 1);
  half.Set(0, double{value});
  const auto expected = static_cast<unsigned>(half.Bits(0));
  ASSERT_EQ(Narrow(value), std::isnan(value) ? 0x7FFFU : expected)
      << std::hexfloat << value;
}

TEST(Half, RoundsToEvenAroundAllHalvesAndTheirMiddles) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float value = Widen(bits);
    if (!std::isfinite(value)) continue;
    // For the largest half, the middle between it and the next value that would
    // follow.
    const unsigned next = (bits & 0x7FFF) + 1;
    const double above = next == 0x7C00 ? 65536.0 : double{Widen(next)};
    const auto middle = static_cast<float>(
        std::copysign((std::fabs(double{value}) + above) / 2, double{value}));
    for (const float v : {value, middle}) {
      ExpectOracle(v);
      ExpectOracle(std::nextafterf(v, INFINITY));
      ExpectOracle(std::nextafterf(v, -INFINITY));
    }
  }
}

TEST(Half, RoundsRandomBitsAndEdges) {
  std::mt19937_64 random(20190215);
  for (int i = 0; i < 300000; ++i) {
    ExpectOracle(__uint_as_float(static_cast<unsigned>(random())));
    // The range of halves: exponents of -26 to 17.
    const auto exponent = static_cast<unsigned>(random() % 44 + 101);
    ExpectOracle(__uint_as_float(static_cast<unsigned>(random()) >> 9 |
                                 exponent << 23 |
                                 static_cast<unsigned>(random() % 2) << 31));
  }
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kMin = std::numeric_limits<float>::denorm_min();
  for (const float v : {0.0F, -0.0F, kMax, -kMax, kMin, -kMin, INFINITY,
                        -INFINITY, NAN, -NAN, 65519.996F, 65520.0F, -65520.0F,
                        0x1p-25F, 0x1.000002p-25F, -0x1p-25F}) {
    ExpectOracle(v);
  }
}

void ExpectBFloatOracle(float value) {
  Elements bfloat(DType::kBFloat16, 1);
  bfloat.Set(0, double{value});
  const auto expected = static_cast<unsigned>(bfloat.Bits(0));
  ASSERT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(value)),
            std::isnan(value) ? 0x7FFFU : expected)
      << std::hexfloat << value;
}

TEST(BFloat, RoundsToEvenAroundAllAndTheirMiddles) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    for (const unsigned low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      ExpectBFloatOracle(__uint_as_float(bits << 16 | low));
    }
  }
}

}  // namespace
}  // namespace gradientflow::cuda_shim
