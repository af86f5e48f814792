#include <cstdint>
#include <vector>

#include "benchmarks/collectives/worker.h"
#include "gtest/gtest.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kCount = 5003;

// The sum of all ranks' patterns.
std::vector<float> SumOf(int ranks, std::size_t count) {
  std::vector<float> sum(count);
  std::vector<float> input(count);
  for (int rank = 0; rank < ranks; ++rank) {
    FillPattern(DType::kFloat32, rank, count, input.data());
    for (std::size_t i = 0; i < count; ++i) sum[i] += input[i];
  }
  return sum;
}

TEST(Pattern, SumOfAllInputsIsRight) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const std::vector<float> sum = SumOf(ranks, kCount);
    EXPECT_EQ(CountUnexpected(DType::kFloat32, {0, ranks}, kCount, sum.data()),
              0U)
        << ranks;
  }
}

TEST(Pattern, SumsOfMostRanksAreExactInHalves) {
  const std::vector<float> sum = SumOf(kMostRanks, kCount);
  for (const float value : sum) {
    EXPECT_EQ(value, static_cast<float>(static_cast<int>(value)));
    EXPECT_LE(value * value, 128 * 128);  // bfloat16 has 8 bits.
  }
}

TEST(Pattern, CountsEveryWrongElement) {
  std::vector<float> sum = SumOf(3, kCount);
  sum[0] += 1;
  sum[1009] -= 1;
  sum[kCount - 1] += 7;
  EXPECT_EQ(CountUnexpected(DType::kFloat32, {0, 3}, kCount, sum.data()), 3U);
}

TEST(Pattern, ShiftedDataIsWrong) {
  const std::vector<float> sum = SumOf(2, 2 * kCount);
  for (const std::size_t shift : {1U, 64U, 1024U, 2048U}) {
    EXPECT_GT(
        CountUnexpected(DType::kFloat32, {0, 2}, kCount, sum.data() + shift),
        kCount / 4)
        << shift;
  }
}

TEST(Pattern, HalvesHoldTheSameValuesAsFloats) {
  std::vector<std::uint16_t> halves(kCount);
  std::vector<std::uint32_t> whole(kCount);
  FillPattern(DType::kBFloat16, 2, kCount, halves.data());
  FillPattern(DType::kFloat32, 2, kCount, whole.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(std::uint32_t{halves[i]} << 16, whole[i]) << i;
  }
}

}  // namespace
}  // namespace gradientflow::benchmarks
