#include "gradientflow/buckets/pool_layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace gradientflow {
namespace {

TEST(PoolLayout, PutsTheLastTensorFirst) {
  const PoolLayout layout = PoolLayout::Create({5, 3, 7}).value();
  EXPECT_EQ(layout.elements(), 15U);
  EXPECT_EQ(layout.offset(2), 0U);
  EXPECT_EQ(layout.offset(1), 7U);
  EXPECT_EQ(layout.offset(0), 10U);
  EXPECT_EQ(layout.order(), (std::vector<std::size_t>{2, 1, 0}));
}

TEST(PoolLayout, GivesEmptyTensorsAPlaceWithoutElements) {
  const PoolLayout layout = PoolLayout::Create({0, 4, 0, 2, 0}).value();
  EXPECT_EQ(layout.elements(), 6U);
  EXPECT_EQ(layout.offset(4), 0U);
  EXPECT_EQ(layout.offset(3), 0U);
  EXPECT_EQ(layout.offset(2), 2U);
  EXPECT_EQ(layout.offset(1), 2U);
  EXPECT_EQ(layout.offset(0), 6U);
  EXPECT_EQ(layout.tensor_elements(2), 0U);
  EXPECT_EQ(layout.tensor_elements(1), 4U);
}

TEST(PoolLayout, MayBeEmpty) {
  EXPECT_EQ(PoolLayout().elements(), 0U);
  const PoolLayout layout = PoolLayout::Create({}).value();
  EXPECT_EQ(layout.tensors(), 0U);
  EXPECT_TRUE(layout.Parts({0, 0}).empty());
}

TEST(PoolLayout, AddressesMoreThan32Bits) {
  const std::size_t big = std::size_t{3} << 32;
  const PoolLayout layout = PoolLayout::Create({1, big, big}).value();
  EXPECT_EQ(layout.offset(0), 2 * big);
  const auto parts = layout.Parts({2 * big - 1, 2});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].tensor, 1U);
  EXPECT_EQ(parts[0].begin, big - 1);
  EXPECT_EQ(parts[1].tensor, 0U);
}

TEST(PoolLayout, RefusesSizesWhoseBytesOverflow) {
  const std::size_t half = std::numeric_limits<std::size_t>::max() / 16 + 1;
  const auto layout = PoolLayout::Create({half, 1, half});
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(layout.status().message().find("tensor 0"), std::string::npos)
      << layout.status().message();
}

// Compares with a map from element to tensor, written out element by element.
TEST(PoolLayout, FindsExactlyTheTensorsThatOverlapARange) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> sizes(random() % 9);
    for (std::size_t& size : sizes) size = random() % 3 == 0 ? 0 : random() % 8;
    const PoolLayout layout = PoolLayout::Create(sizes).value();
    std::vector<std::size_t> owner;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      owner.insert(owner.end(), sizes[i], i);
    }
    ASSERT_EQ(layout.elements(), owner.size());
    for (std::size_t begin = 0; begin <= owner.size(); ++begin) {
      for (std::size_t end = begin; end <= owner.size(); ++end) {
        std::size_t at = begin;
        for (const TensorPart& part : layout.Parts({begin, end - begin})) {
          ASSERT_EQ(part.pool_begin, at);
          ASSERT_GT(part.count, 0U);
          ASSERT_EQ(part.pool_begin, layout.offset(part.tensor) + part.begin);
          for (std::size_t i = 0; i < part.count; ++i) {
            ASSERT_EQ(owner[at + i], part.tensor);
          }
          at += part.count;
          ASSERT_TRUE(at == end || owner[at] != part.tensor) << "not maximal";
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow
