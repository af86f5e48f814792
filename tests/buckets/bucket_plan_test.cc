#include "gradientflow/buckets/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"

namespace gradientflow {

bool operator==(const Extent& a, const Extent& b) {
  return a.begin == b.begin && a.count == b.count;
}
void PrintTo(const Extent& extent, std::ostream* out) {
  *out << "[" << extent.begin << ", +" << extent.count << ")";
}

namespace {

constexpr std::size_t kInfinite = static_cast<std::size_t>(-1);
using Extents = std::vector<Extent>;

TEST(DensePlan, SendsEachTensorByItselfWithThetaZero) {
  const PoolLayout layout = PoolLayout::Create({0, 5, 0, 3, 7, 0}).value();
  const auto plan = PlanDense(layout, 0, 4);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].extents, (Extents{{0, 7}}));
  EXPECT_EQ(plan[1].extents, (Extents{{7, 3}}));
  EXPECT_EQ(plan[2].extents, (Extents{{10, 5}}));
  EXPECT_EQ(plan[1].elements, 3U);
  EXPECT_EQ(plan[1].pool_end, 10U);
}

TEST(DensePlan, SendsEverythingAtOnceWithThetaInfinite) {
  const PoolLayout layout = PoolLayout::Create({5, 3, 7}).value();
  const auto plan = PlanDense(layout, kInfinite, 4);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].extents, (Extents{{0, 15}}));
  EXPECT_EQ(plan[0].pool_end, 15U);
}

TEST(DensePlan, ClosesOnlyWhenStrictlyAboveTheta) {
  const PoolLayout layout = PoolLayout::Create({4, 4, 4, 4, 4}).value();
  const auto plan = PlanDense(layout, 32, 4);  // Two tensors are 32 bytes.
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].extents, (Extents{{0, 12}}));
  EXPECT_EQ(plan[1].extents, (Extents{{12, 8}}));
  EXPECT_EQ(PlanDense(layout, 31, 4).size(), 3U);
}

TEST(DensePlan, CountsWireBytes) {
  const PoolLayout layout = PoolLayout::Create({4, 4, 4, 4}).value();
  EXPECT_EQ(PlanDense(layout, 15, 4).size(), 4U);
  EXPECT_EQ(PlanDense(layout, 15, 2).size(), 2U);
}

TEST(DensePlan, IsEmptyForAPoolWithoutElements) {
  EXPECT_TRUE(PlanDense(PoolLayout(), 0, 4).empty());
  EXPECT_TRUE(PlanDense(PoolLayout::Create({0, 0}).value(), 0, 4).empty());
}

// The paper's pseudo-code, with hooks in generation order.
TEST(DensePlan, MatchesThePseudoCodeForHooksInGenerationOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::size_t> sizes(1 + random() % 20);
    for (std::size_t& size : sizes) size = random() % 50;
    const std::size_t theta = random() % 300;
    const PoolLayout layout = PoolLayout::Create(sizes).value();
    Extents expected;
    std::size_t ready = 0;
    std::size_t launched = 0;
    for (std::size_t j = sizes.size(); j-- > 0;) {
      ready += sizes[j];
      if ((ready - launched) * 2 > theta) {
        expected.push_back({launched, ready - launched});
        launched = ready;
      }
    }
    if (ready > launched) expected.push_back({launched, ready - launched});

    Extents seen;
    for (const Bucket& bucket : PlanDense(layout, theta, 2)) {
      ASSERT_EQ(bucket.extents.size(), 1U);
      ASSERT_EQ(bucket.elements, bucket.extents[0].count);
      ASSERT_EQ(bucket.pool_end,
                bucket.extents[0].begin + bucket.extents[0].count);
      seen.push_back(bucket.extents[0]);
    }
    ASSERT_EQ(seen, expected);
  }
}

// Theta counts gradients. What lies between two tensors of a bucket is sent, so
// that the bucket is one extent; what lies between buckets is not.
TEST(DensePlan, CutsBetweenTheSameTensorsWhateverThePadding) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::size_t> sizes(1 + random() % 20);
    for (std::size_t& size : sizes) size = random() % 50;
    const std::size_t theta = random() % 300;
    const PoolLayout bare = PoolLayout::Create(sizes).value();
    const PoolLayout padded =
        PoolLayout::Create(sizes, 1 + random() % 32).value();
    const auto expected = PlanDense(bare, theta, 2);
    const auto plan = PlanDense(padded, theta, 2);
    ASSERT_EQ(plan.size(), expected.size());
    for (std::size_t k = 0; k < plan.size(); ++k) {
      ASSERT_EQ(plan[k].extents.size(), 1U);
      const Extent& extent = plan[k].extents[0];
      const auto parts = padded.Parts(extent);
      const auto tensors = bare.Parts(expected[k].extents[0]);
      ASSERT_EQ(parts.size(), tensors.size());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        ASSERT_EQ(parts[i].tensor, tensors[i].tensor);
        ASSERT_EQ(parts[i].count, tensors[i].count);
      }
      ASSERT_EQ(extent.begin, parts.front().pool_begin);
      ASSERT_EQ(extent.begin + extent.count,
                parts.back().pool_begin + parts.back().count);
      ASSERT_EQ(plan[k].pool_end, extent.begin + extent.count);
      ASSERT_EQ(plan[k].elements, extent.count);
    }
  }
}

TEST(SparsePlan, SendsEachSelectedChunkByItselfWithThetaZero) {
  const std::vector<std::uint8_t> selected = {1, 1, 0, 1};
  const auto plan = PlanSparse({14, 4, selected}, 0, 4);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].extents, (Extents{{0, 4}}));
  EXPECT_EQ(plan[1].extents, (Extents{{4, 4}}));
  EXPECT_EQ(plan[2].extents, (Extents{{12, 2}}));  // Short.
  EXPECT_EQ(plan[2].elements, 2U);
  EXPECT_EQ(plan[2].pool_end, 14U);
}

TEST(SparsePlan, MergesNeighboursInOneBucketWithThetaInfinite) {
  const std::vector<std::uint8_t> selected = {0, 1, 1, 0, 0, 1, 0};
  const auto plan = PlanSparse({27, 4, selected}, kInfinite, 4);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].extents, (Extents{{4, 8}, {20, 4}}));
  EXPECT_EQ(plan[0].elements, 12U);
  EXPECT_EQ(plan[0].pool_end, 24U);
}

TEST(SparsePlan, ClosesOnlyWhenStrictlyAboveTheta) {
  const std::vector<std::uint8_t> selected = {1, 0, 1, 1, 0, 1, 1};
  const auto plan = PlanSparse({28, 4, selected}, 16, 2);  // Two chunks: 16.
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].extents, (Extents{{0, 4}, {8, 8}}));
  EXPECT_EQ(plan[0].pool_end, 16U);
  EXPECT_EQ(plan[1].extents, (Extents{{20, 8}}));
}

TEST(SparsePlan, IsEmptyWithoutSelectedChunks) {
  EXPECT_TRUE(PlanSparse({0, 4, {}}, 0, 4).empty());
  const std::vector<std::uint8_t> none(3, 0);
  EXPECT_TRUE(PlanSparse({12, 4, none}, 0, 4).empty());
}

TEST(SparsePlan, SendsEverySelectedElementOnceAndNothingElse) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::size_t elements = random() % 400;
    const std::size_t chunk = 1 + random() % 37;
    const std::size_t theta = random() % 3 == 0 ? kInfinite : random() % 400;
    std::vector<std::uint8_t> selected((elements + chunk - 1) / chunk);
    for (std::uint8_t& one : selected) one = random() % 2;
    std::vector<int> sent(elements, 0);
    std::size_t previous_end = 0;
    const auto plan = PlanSparse({elements, chunk, selected}, theta, 4);
    for (const Bucket& bucket : plan) {
      std::size_t count = 0;
      std::size_t end = previous_end;
      for (const Extent& extent : bucket.extents) {
        ASSERT_TRUE(count == 0 ? extent.begin >= end : extent.begin > end);
        end = extent.begin + extent.count;
        count += extent.count;
        for (std::size_t i = extent.begin; i < end; ++i) ++sent[i];
      }
      ASSERT_EQ(bucket.elements, count);
      ASSERT_EQ(bucket.pool_end, end);
      ASSERT_GT(count, 0U);
      if (&bucket != &plan.back()) {
        ASSERT_GT(count * 4, theta);
      }
      // No more than needed: without its last chunk it was not above theta.
      ASSERT_LE((count - 1 - (end - 1) % chunk) * 4, theta);
      previous_end = end;
    }
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_EQ(sent[i], selected[i / chunk]) << "element " << i;
    }
  }
}

TEST(ExtentsOf, JoinsBucketsThatTouch) {
  const std::vector<std::uint8_t> selected = {1, 1, 0, 1};
  EXPECT_EQ(ExtentsOf(PlanSparse({14, 4, selected}, 0, 4)),
            (Extents{{0, 8}, {12, 2}}));
  const PoolLayout layout = PoolLayout::Create({5, 3, 7}).value();
  EXPECT_EQ(ExtentsOf(PlanDense(layout, 0, 4)), (Extents{{0, 15}}));
  EXPECT_TRUE(ExtentsOf({}).empty());
}

}  // namespace
}  // namespace gradientflow
