#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

class Convert : public EveryTable {
 protected:
  int Run(const Elements& src, Elements& dst, float scale = 1,
          Elements* settled = nullptr, std::uint32_t* nonfinite = nullptr,
          float settled_scale = 1) {
    return kernels().convert({src.data(), src.type(), dst.data(), dst.type(),
                              settled != nullptr ? settled->data() : nullptr,
                              src.size(), scale, nonfinite, settled_scale},
                             nullptr);
  }

  // Converts `src` to `type`, and compares every element with the oracle.
  void ExpectRounded(const Elements& src, DType type) {
    Elements dst(type, src.size());
    ASSERT_EQ(Run(src, dst), 0);
    for (std::size_t i = 0; i < src.size(); ++i) {
      ASSERT_TRUE(Is(dst, i, RoundTo(type, src.Get(i))))
          << std::hex << src.Bits(i);
    }
    EXPECT_TRUE(dst.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_TABLE(Convert);

TEST_P(Convert, ReadsEachOfThe65536HalvesExactly) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    Elements src(type, 65536);
    for (std::size_t i = 0; i < src.size(); ++i) src.SetBits(i, i);
    for (const DType to : kGradientTypes) {
      if (to == type) continue;
      ExpectRounded(src, to);
    }
  }
}

TEST_P(Convert, WritesEachHalfBackUnchanged) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    Elements halves(type, 65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves.SetBits(i, i);
    Elements wide(DType::kFloat32, halves.size());
    Elements back(type, halves.size());
    ASSERT_EQ(Run(halves, wide), 0);
    ASSERT_EQ(Run(wide, back), 0);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_TRUE(Is(back, i, halves.Get(i)));
    }
  }
}

// Around every half and every middle between two halves, and one float32 to
// either side: ties, denormals, and the limits of underflow and overflow.
TEST_P(Convert, RoundsTiesToEvenBetweenAllHalves) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    Elements halves(type, 65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves.SetBits(i, i);
    Elements src(DType::kFloat32, 65536 * 6);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double value = halves.Get(i);
      double next = halves.Get((i & 0x8000) | ((i + 1) & 0x7FFF));
      if (std::isinf(next) && std::isfinite(value)) {
        const double below = halves.Get(i - 1);
        next = value + (value - below);
      }
      const auto middle = static_cast<float>((value + next) / 2);
      const auto exact = static_cast<float>(value);
      src.Set(6 * i, exact);
      src.Set(6 * i + 1, std::nextafterf(exact, INFINITY));
      src.Set(6 * i + 2, std::nextafterf(exact, -INFINITY));
      src.Set(6 * i + 3, middle);
      src.Set(6 * i + 4, std::nextafterf(middle, INFINITY));
      src.Set(6 * i + 5, std::nextafterf(middle, -INFINITY));
    }
    ExpectRounded(src, type);
  }
}

TEST_P(Convert, RoundsAnyBitsIncludingSignallingNans) {
  Elements src(DType::kFloat32, 1 << 17);
  for (std::size_t i = 0; i < src.size(); ++i) src.SetBits(i, random_());
  const std::uint32_t nans[] = {0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001,
                                0x7FC00000, 0x7FBFFFFF, 0x7F808000, 0xFFFF8000};
  for (std::size_t i = 0; i < 8; ++i) src.SetBits(i * 5, nans[i]);
  ExpectRounded(src, DType::kFloat16);
  ExpectRounded(src, DType::kBFloat16);
}

TEST_P(Convert, SettlesByAScaleOfItsOwn) {
  for (const DType from : kGradientTypes) {
    for (const DType to : kGradientTypes) {
      for (const float scale : {1.0f, 65536.0f}) {
        Elements src(from, 173);
        src.Fill(random_);
        Elements dst(to, 173);
        Elements settled(from, 173);
        ASSERT_EQ(Run(src, dst, scale, &settled, nullptr, 0.3f), 0);
        for (std::size_t i = 0; i < src.size(); ++i) {
          const double rounded =
              RoundTo(to, RoundTo(DType::kFloat32, double{scale} * src.Get(i)));
          ASSERT_TRUE(Is(dst, i, rounded));
          ASSERT_TRUE(Is(
              settled, i,
              RoundTo(from, RoundTo(DType::kFloat32, double{0.3f} * rounded))));
        }
      }
    }
  }
}

TEST_P(Convert, ScalesAndSettlesForAllTypesSizesAndShifts) {
  for (const DType from : kGradientTypes) {
    for (const DType to : kGradientTypes) {
      for (const std::size_t n : kSizes) {
        for (const float scale : {1.0f, 0.37f}) {
          Elements src(from, n, n % 5);
          src.Fill(random_);
          Elements dst(to, n, n % 3 + 1);
          Elements settled(from, n, 3);
          ASSERT_EQ(Run(src, dst, scale, &settled), 0);
          for (std::size_t i = 0; i < n; ++i) {
            const double value =
                RoundTo(DType::kFloat32, double{scale} * src.Get(i));
            const double rounded = RoundTo(to, value);
            ASSERT_TRUE(Is(dst, i, rounded));
            ASSERT_TRUE(Is(settled, i, RoundTo(from, rounded)));
          }
          ASSERT_TRUE(dst.CanariesIntact() && settled.CanariesIntact());
        }
      }
    }
  }
}

TEST_P(Convert, SettlesIntoItsSource) {
  for (std::size_t n = 0; n < 150; ++n) {
    Elements src(DType::kFloat32, n, 1);
    src.Fill(random_);
    const Elements before = src;
    Elements dst(DType::kFloat16, n, 1);
    ASSERT_EQ(Run(src, dst, 1, &src), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const double rounded = RoundTo(DType::kFloat16, before.Get(i));
      ASSERT_TRUE(Is(dst, i, rounded));
      ASSERT_TRUE(Is(src, i, rounded));
    }
    ASSERT_TRUE(src.CanariesIntact());
  }
}

TEST_P(Convert, ScalesInPlace) {
  for (const DType type : kGradientTypes) {
    Elements values(type, 333, 1);
    values.Fill(random_);
    const Elements before = values;
    ASSERT_EQ(Run(values, values, 0.125f), 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(Is(values, i, RoundTo(type, before.Get(i) * 0.125)));
    }
  }
}

// A GPU moves packs of elements if one shift aligns all buffers.
TEST_P(Convert, CopiesEveryTypeBitForBit) {
  for (int t = 0; t < kDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    for (const std::size_t n : {0, 1, 100, 17001}) {
      for (const std::size_t apart : {0, 1}) {
        Elements src(type, n, 1);
        for (std::size_t i = 0; i < n; ++i) src.SetBits(i, random_());
        Elements dst(type, n, 1 + apart);
        Elements settled(type, n, 1 + 2 * apart);
        Scalar<std::uint32_t> nonfinite(7);
        ASSERT_EQ(Run(src, dst, 1, &settled, nonfinite.get()), 0);
        EXPECT_TRUE(dst.SameBits(src));
        EXPECT_TRUE(settled.SameBits(src));
        EXPECT_TRUE(dst.CanariesIntact() && settled.CanariesIntact());
        bool any = false;
        for (std::size_t i = 0; i < n; ++i) any |= IsNonFinite(src, i);
        EXPECT_EQ(*nonfinite, any ? 1u : 7u);
      }
    }
  }
}

TEST_P(Convert, FlagsANonFiniteValueAtAnyPlace) {
  constexpr std::size_t kN = 147;
  for (const DType from : kGradientTypes) {
    for (const DType to : kGradientTypes) {
      for (std::size_t at = 0; at < kN; ++at) {
        Elements src(from, kN);
        src.Fill(random_);
        Elements dst(to, kN);
        Scalar<std::uint32_t> nonfinite;
        ASSERT_EQ(Run(src, dst, 1, nullptr, nonfinite.get()), 0);
        ASSERT_EQ(*nonfinite, 0u);
        src.Set(at, at % 2 == 0 ? NAN : -INFINITY);
        ASSERT_EQ(Run(src, dst, 1, nullptr, nonfinite.get()), 0);
        ASSERT_EQ(*nonfinite, 1u) << at;
      }
    }
  }
}

TEST_P(Convert, FlagsOnlyWhatItsRoundingMakesInfinite) {
  struct Border {
    DType type;
    float finite;
    float infinite;
  };
  const float max_bf16 = std::nextafterf(0x1.FFp127f, 0);
  for (const Border border :
       {Border{DType::kFloat16, std::nextafterf(65520, 0), 65520},
        Border{DType::kBFloat16, max_bf16, 0x1.FFp127f}}) {
    for (const float sign : {1.0f, -1.0f}) {
      Elements src(DType::kFloat32, 33);
      src.Fill(random_);
      Elements dst(border.type, 33);
      Scalar<std::uint32_t> nonfinite;
      src.Set(20, sign * border.finite);
      ASSERT_EQ(Run(src, dst, 1, nullptr, nonfinite.get()), 0);
      EXPECT_EQ(*nonfinite, 0u);
      EXPECT_FALSE(IsNonFinite(dst, 20));
      src.Set(20, sign * border.infinite);
      ASSERT_EQ(Run(src, dst, 1, nullptr, nonfinite.get()), 0);
      EXPECT_EQ(*nonfinite, 1u);
      EXPECT_TRUE(IsNonFinite(dst, 20));
    }
  }
}

TEST_P(Convert, FlagsASettledValueThatOverflowsItsNarrowerType) {
  Elements src(DType::kFloat16, 5);
  for (std::size_t i = 0; i < 5; ++i) src.Set(i, 60000);
  Elements dst(DType::kBFloat16, 5);
  Elements settled(DType::kFloat16, 5);
  Scalar<std::uint32_t> nonfinite;
  ASSERT_EQ(Run(src, dst, 4, nullptr, nonfinite.get()), 0);
  EXPECT_EQ(*nonfinite, 0u);
  ASSERT_EQ(Run(src, dst, 4, &settled, nonfinite.get()), 0);
  EXPECT_EQ(*nonfinite, 1u);
}

TEST_P(Convert, RefusesMixedPlainTypesAndTouchesNothing) {
  Elements src(DType::kInt32, 9);
  src.Fill(random_);
  for (const DType to : {DType::kFloat32, DType::kInt64}) {
    Elements dst(to, 9);
    dst.Fill(random_);
    const Elements before = dst;
    EXPECT_NE(Run(src, dst), 0);
    EXPECT_TRUE(dst.SameBits(before));
  }
  Elements wide(DType::kFloat64, 9);
  Elements scaled(DType::kFloat64, 9);
  EXPECT_NE(Run(wide, scaled, 2), 0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
