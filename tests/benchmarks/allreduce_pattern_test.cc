#include <cstring>
#include <vector>

#include "benchmarks/allreduce/pattern.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kCount = 5003;

TEST(Pattern, SumOfAllInputsIsRight) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const Pattern pattern(DType::kFloat32, ReduceOp::kSum, ranks);
    std::vector<float> sum(kCount, 0.0F);
    std::vector<float> input(kCount);
    for (int rank = 0; rank < ranks; ++rank) {
      pattern.Fill(rank, kCount, input.data());
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += input[i];
    }
    EXPECT_EQ(pattern.CountWrong(kCount, sum.data()), 0U) << ranks;
  }
}

TEST(Pattern, ProductOfAllInputsIsRight) {
  const Pattern pattern(DType::kInt8, ReduceOp::kProduct, 7);
  std::vector<std::int8_t> product(kCount, 1);
  std::vector<std::int8_t> input(kCount);
  for (int rank = 0; rank < 7; ++rank) {
    pattern.Fill(rank, kCount, input.data());
    for (std::size_t i = 0; i < kCount; ++i) {
      product[i] = static_cast<std::int8_t>(product[i] * input[i]);
    }
  }
  EXPECT_EQ(pattern.CountWrong(kCount, product.data()), 0U);
}

TEST(Pattern, UnsignedBytesAreReducedAsSuch) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBitAnd,
        ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    const Pattern pattern(DType::kUInt8, op, kMostRanks);
    std::vector<std::uint8_t> all(kCount);
    std::vector<std::uint8_t> input(kCount);
    pattern.Fill(0, kCount, all.data());
    for (int rank = 1; rank < kMostRanks; ++rank) {
      pattern.Fill(rank, kCount, input.data());
      kernels::CpuKernels().accumulate(
          {all.data(), DType::kUInt8, input.data(), DType::kUInt8, kCount,
           static_cast<kernels::ReduceOp>(op), 1.0F, 1.0F, nullptr},
          nullptr);
    }
    EXPECT_EQ(pattern.CountWrong(kCount, all.data()), 0U) << Name(op);
  }
}

TEST(Pattern, BitwiseResultsAreThoseOfTheIntegers) {
  for (const ReduceOp op :
       {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    const Pattern pattern(DType::kInt64, op, 3);
    std::vector<std::int64_t> data[3];
    for (int rank = 0; rank < 3; ++rank) {
      data[rank].resize(kCount);
      pattern.Fill(rank, kCount, data[rank].data());
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::int64_t a = data[0][i];
      const std::int64_t b = data[1][i];
      const std::int64_t c = data[2][i];
      data[0][i] = op == ReduceOp::kBitAnd  ? a & b & c
                   : op == ReduceOp::kBitOr ? a | b | c
                                            : a ^ b ^ c;
    }
    EXPECT_EQ(pattern.CountWrong(kCount, data[0].data()), 0U) << Name(op);
  }
}

TEST(Pattern, MeansAreWholeNumbers) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const Pattern pattern(DType::kFloat32, ReduceOp::kMean, ranks);
    std::vector<float> sum(kCount, 0.0F);
    std::vector<float> input(kCount);
    for (int rank = 0; rank < ranks; ++rank) {
      pattern.Fill(rank, kCount, input.data());
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += input[i];
    }
    const float factor = 1.0F / static_cast<float>(ranks);
    for (float& value : sum) value *= factor;
    EXPECT_EQ(pattern.CountWrong(kCount, sum.data()), 0U) << ranks;
    sum[7] += 1e-6F * (1 + sum[7]);
    EXPECT_EQ(pattern.CountWrong(kCount, sum.data()), 1U) << ranks;
  }
}

TEST(Pattern, CountsEveryWrongElement) {
  const Pattern pattern(DType::kInt32, ReduceOp::kMax, 1);
  std::vector<std::int32_t> data(kCount);
  pattern.Fill(0, kCount, data.data());
  ASSERT_EQ(pattern.CountWrong(kCount, data.data()), 0U);
  data[0] += 1;
  data[1009] -= 1;
  data[kCount - 1] += 7;
  EXPECT_EQ(pattern.CountWrong(kCount, data.data()), 3U);
}

TEST(Pattern, ShiftedDataIsWrong) {
  const Pattern pattern(DType::kFloat32, ReduceOp::kSum, 2);
  std::vector<float> sum(2 * kCount);
  std::vector<float> input(2 * kCount);
  pattern.Fill(0, sum.size(), sum.data());
  pattern.Fill(1, input.size(), input.data());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += input[i];
  for (const std::size_t shift : {1U, 64U, 1024U, 2048U}) {
    EXPECT_GT(pattern.CountWrong(kCount, sum.data() + shift), kCount / 4)
        << shift;
  }
}

TEST(Pattern, HalvesHoldTheSameValuesAsFloats) {
  const Pattern pattern(DType::kBFloat16, ReduceOp::kSum, 3);
  const Pattern floats(DType::kFloat32, ReduceOp::kSum, 3);
  std::vector<std::uint16_t> halves(kCount);
  std::vector<std::uint32_t> whole(kCount);
  pattern.Fill(2, kCount, halves.data());
  floats.Fill(2, kCount, whole.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(std::uint32_t{halves[i]} << 16, whole[i]) << i;
  }
}

}  // namespace
}  // namespace gradientflow::benchmarks
