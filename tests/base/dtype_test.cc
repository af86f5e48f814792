#include "gradientflow/base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

namespace gradientflow {
namespace {

TEST(DTypes, HaveNamesOfTheirOwnThatReadBack) {
  std::set<std::string> names;
  for (int i = 0; i < kernels::kDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_GT(SizeOf(type), 0U) << i;
    ASSERT_FALSE(Name(type).empty()) << i;
    EXPECT_EQ(ParseDType(Name(type)), type) << i;
    names.emplace(Name(type));
  }
  EXPECT_EQ(names.size(), kernels::kDTypes);
  EXPECT_EQ(SizeOf(static_cast<DType>(kernels::kDTypes)), 0U);
  EXPECT_EQ(ParseDType("float17"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(Name(DType::kUInt8), "uint8");
}

TEST(DTypes, StandInTheirTableByNumber) {
  for (int i = 0; i < kernels::kDTypes; ++i) {
    const kernels::DTypeTraits& traits = TraitsOf(static_cast<DType>(i));
    EXPECT_EQ(static_cast<int>(traits.type), i);
    EXPECT_EQ(traits.bits % 8, 0) << traits.name;
    EXPECT_TRUE(traits.is_float || !traits.is_gradient) << traits.name;
    EXPECT_EQ(traits.narrow_sums, traits.is_gradient && traits.bits < 32)
        << traits.name;
    const bool named =
        GradientTypeNames().find(traits.name) != std::string_view::npos;
    EXPECT_EQ(named, traits.is_gradient) << traits.name;
    EXPECT_EQ(ParseGradientType(traits.name).has_value(), traits.is_gradient)
        << traits.name;
  }
  EXPECT_EQ(ParseGradientType("float16"), DType::kFloat16);
  EXPECT_EQ(ParseGradientType("float17"), std::nullopt);
  EXPECT_FALSE(TraitsOf(DType::kFloat32).narrow_sums);
  EXPECT_TRUE(TraitsOf(DType::kFloat16).narrow_sums);
  EXPECT_FALSE(kernels::IsDType(static_cast<DType>(kernels::kDTypes)));
  EXPECT_FALSE(IsFloat(static_cast<DType>(77)));
}

TEST(ReduceOps, HaveNamesOfTheirOwnThatReadBack) {
  std::set<std::string> names;
  for (int i = 0; i < kReduceOps; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    ASSERT_FALSE(Name(op).empty()) << i;
    EXPECT_EQ(ParseReduceOp(Name(op)), op) << i;
    names.emplace(Name(op));
  }
  EXPECT_EQ(names.size(), kReduceOps);
  EXPECT_EQ(ParseReduceOp("bit_nor"), std::nullopt);
  EXPECT_EQ(ParseReduceOp(""), std::nullopt);
}

// Calls pass their operation to the kernels by its number.
TEST(ReduceOps, AreTheKernelsOnesOfTheSameNumber) {
  using Kernel = kernels::ReduceOp;
  const std::pair<ReduceOp, Kernel> pairs[] = {
      {ReduceOp::kSum, Kernel::kSum},
      {ReduceOp::kMin, Kernel::kMin},
      {ReduceOp::kMax, Kernel::kMax},
      {ReduceOp::kProduct, Kernel::kProduct},
      {ReduceOp::kBitAnd, Kernel::kBitAnd},
      {ReduceOp::kBitOr, Kernel::kBitOr},
      {ReduceOp::kBitXor, Kernel::kBitXor},
  };
  for (const auto& [op, kernel] : pairs) {
    EXPECT_EQ(static_cast<Kernel>(op), kernel) << Name(op);
    EXPECT_TRUE(Combines(kernel, DType::kUInt8)) << Name(op);
    EXPECT_EQ(Combines(kernel, DType::kFloat16), !IsBitwise(op)) << Name(op);
  }
  const auto mean = static_cast<Kernel>(ReduceOp::kMean);
  EXPECT_FALSE(Combines(mean, DType::kFloat32));
  EXPECT_FALSE(Combines(mean, DType::kInt32));
}

}  // namespace
}  // namespace gradientflow
