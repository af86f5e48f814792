#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

struct How {
  ReduceOp op = ReduceOp::kSum;
  float dst_scale = 1;
  float out_scale = 1;
};

class Accumulate : public EveryCpuTable {
 protected:
  int Run(Elements& dst, const Elements& src, How how = {},
          std::uint32_t* nonfinite = nullptr) {
    return kernels().accumulate(
        {dst.data(), dst.type(), src.data(), src.type(), dst.size(), how.op,
         how.dst_scale, how.out_scale, nonfinite},
        nullptr);
  }

  // Runs one call, and compares every element with the oracle.
  void ExpectOracle(DType dst_type, DType src_type, std::size_t n, How how) {
    Elements dst(dst_type, n, n % 4);
    Elements src(src_type, n, n % 7);
    dst.Fill(random_);
    src.Fill(random_);
    const Elements before = dst;
    const DType arithmetic =
        IsGradientType(dst_type) ? DType::kFloat32 : dst_type;
    ASSERT_EQ(Run(dst, src, how), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const double scaled =
          RoundTo(arithmetic, before.Get(i) * double{how.dst_scale});
      const double both = Combine(how.op, dst_type, scaled, src.Get(i));
      const double value = RoundTo(arithmetic, both * double{how.out_scale});
      ASSERT_TRUE(Is(dst, i, RoundTo(dst_type, value)));
    }
    ASSERT_TRUE(dst.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CPU_TABLE(Accumulate);

constexpr How kHows[] = {
    {ReduceOp::kSum, 1, 1},     {ReduceOp::kSum, 0.3f, 0.7f},
    {ReduceOp::kMin, 1, 1},     {ReduceOp::kMax, -0.5f, 3},
    {ReduceOp::kProduct, 1, 1}, {ReduceOp::kProduct, 1.1f, 0.9f}};

TEST_P(Accumulate, RoundsOncePerStepForAllGradientTypes) {
  for (const DType dst : kGradientTypes) {
    for (const DType src : kGradientTypes) {
      for (const How how : kHows) {
        for (const std::size_t n : kSizes) ExpectOracle(dst, src, n, how);
      }
    }
  }
}

TEST_P(Accumulate, HandlesEveryTailLength) {
  for (std::size_t n = 0; n < 200; ++n) {
    ExpectOracle(DType::kFloat32, DType::kFloat16, n, {});
    ExpectOracle(DType::kFloat16, DType::kFloat16, n, {});
  }
}

TEST_P(Accumulate, HandlesRunsOfManyBlocks) {
  for (const std::size_t n : {4099, 20011}) {
    ExpectOracle(DType::kFloat32, DType::kFloat16, n, kHows[0]);
    ExpectOracle(DType::kBFloat16, DType::kBFloat16, n, kHows[0]);
  }
}

TEST_P(Accumulate, TakesScalesOnFloat64) {
  for (const How how : kHows) {
    for (const std::size_t n : kSizes) {
      ExpectOracle(DType::kFloat64, DType::kFloat64, n, how);
    }
  }
}

TEST_P(Accumulate, CombinesIntegersBitForBit) {
  for (const DType type : kIntegerTypes) {
    const int bits = static_cast<int>(SizeOf(type)) * 8;
    for (const ReduceOp op : kIntegerOps) {
      for (const std::size_t n : kSizes) {
        Elements dst(type, n, n % 4);
        Elements src(type, n, n % 7);
        dst.Fill(random_);
        src.Fill(random_);
        if (n > 0) {
          dst.SetBits(n / 2, std::uint64_t{1} << (bits - 1));  // 10...0,
          src.SetBits(n / 2, ~std::uint64_t{0});               // and 1...1.
        }
        Elements result = dst;
        Scalar<std::uint32_t> nonfinite;
        ASSERT_EQ(Run(result, src, {op, 1, 1}, nonfinite.get()), 0);
        EXPECT_EQ(*nonfinite, 0u);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(result.Bits(i),
                    CombineBits(op, type, dst.Bits(i), src.Bits(i)));
        }
        ASSERT_TRUE(result.CanariesIntact());
      }
    }
  }
}

TEST_P(Accumulate, OrdersBytesByTheirSignIfTheyHaveOne) {
  for (const DType type : {DType::kInt8, DType::kUInt8}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      Elements dst(type, 1);
      Elements src(type, 1);
      dst.SetBits(0, 0x80);
      src.SetBits(0, 0x7F);
      ASSERT_EQ(Run(dst, src, {op, 1, 1}), 0);
      const bool high = (type == DType::kUInt8) == (op == ReduceOp::kMax);
      EXPECT_EQ(dst.Bits(0), high ? 0x80u : 0x7Fu);
    }
  }
}

TEST_P(Accumulate, MinAndMaxOfANanAreANanFromEitherSide) {
  for (const DType type :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      Elements dst(type, 40);
      Elements src(type, 40);
      dst.Fill(random_);
      src.Fill(random_);
      dst.Set(3, NAN);
      src.Set(20, NAN);
      dst.Set(37, NAN);
      src.Set(37, NAN);
      Scalar<std::uint32_t> nonfinite;
      ASSERT_EQ(Run(dst, src, {op, 1, 1}, nonfinite.get()), 0);
      EXPECT_EQ(*nonfinite, 1u);
      for (std::size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(std::isnan(dst.Get(i)), i == 3 || i == 20 || i == 37) << i;
      }
    }
  }
}

TEST_P(Accumulate, FlagsOverflowOfTheWrittenTypeAtAnyPlace) {
  for (const DType type :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    const double large = type == DType::kFloat16   ? 40000
                         : type == DType::kFloat64 ? 1e308
                                                   : 2e38;
    for (std::size_t at = 0; at < 100; ++at) {
      Elements dst(type, 100);
      Elements src(type, 100);
      dst.Fill(random_);
      src.Fill(random_);
      dst.Set(at, large);
      Scalar<std::uint32_t> nonfinite;
      Elements finite = dst;
      ASSERT_EQ(Run(finite, src, {}, nonfinite.get()), 0);
      ASSERT_EQ(*nonfinite, 0u);
      src.Set(at, large);
      ASSERT_EQ(Run(dst, src, {}, nonfinite.get()), 0);
      ASSERT_EQ(*nonfinite, 1u) << at;
    }
  }
}

TEST_P(Accumulate, RefusesTypesThatDoNotMix) {
  Elements dst(DType::kFloat32, 9);
  dst.Fill(random_);
  const Elements before = dst;
  const Elements src(DType::kFloat64, 9);
  EXPECT_NE(Run(dst, src), 0);
  EXPECT_TRUE(dst.SameBits(before));
  Elements integers(DType::kInt32, 9);
  const Elements others(DType::kInt64, 9);
  EXPECT_NE(Run(integers, others), 0);
  EXPECT_NE(Run(integers, integers, {ReduceOp::kSum, 1, 0.5f}), 0);
  const Elements bytes(DType::kInt8, 9);
  Elements unsigned_bytes(DType::kUInt8, 9);
  EXPECT_NE(Run(unsigned_bytes, bytes), 0);
}

TEST_P(Accumulate, RefusesOperationsThatTheTypeHasNot) {
  for (const DType type :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    Elements dst(type, 70);
    Elements src(type, 70);
    dst.Fill(random_);
    src.Fill(random_);
    const Elements before = dst;
    for (const ReduceOp op : kBitwiseOps) {
      EXPECT_NE(Run(dst, src, {op, 1, 1}), 0);
    }
    EXPECT_TRUE(dst.SameBits(before));
  }
  for (const DType type : {DType::kFloat32, DType::kInt32, DType::kUInt8}) {
    Elements dst(type, 70);
    const Elements src = dst;
    for (const int op : {4, 8, 255}) {  // 4 is the mean of collectives.
      EXPECT_NE(Run(dst, src, {static_cast<ReduceOp>(op), 1, 1}), 0) << op;
    }
    EXPECT_TRUE(dst.SameBits(src));
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
