#include "gradientflow/buckets/pool_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
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

constexpr std::size_t kPadding = static_cast<std::size_t>(-1);

// The tensor of each element of the pool, written out element by element.
std::vector<std::size_t> OwnersOf(const std::vector<std::size_t>& sizes,
                                  std::size_t align) {
  std::vector<std::size_t> owner;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) continue;
    while (owner.size() % align != 0) owner.push_back(kPadding);
    owner.insert(owner.end(), sizes[i], i);
  }
  return owner;
}

// Some are empty, and many are of a prime number of elements.
std::vector<std::size_t> RandomSizes(std::mt19937& random, std::size_t most) {
  static constexpr std::size_t kSome[] = {0, 0, 1, 2, 3, 5, 7, 13, 31, 127};
  std::vector<std::size_t> sizes(random() % 9);
  for (std::size_t& size : sizes) {
    size = random() % 2 == 0 ? kSome[random() % 10] : random() % 64;
    size = std::min(size, most);
  }
  return sizes;
}

TEST(PoolLayout, FindsExactlyTheTensorsThatOverlapARange) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::size_t> sizes = RandomSizes(random, 7);
    const std::size_t align = std::size_t{1} << random() % 4;
    const PoolLayout layout = PoolLayout::Create(sizes, align).value();
    const std::vector<std::size_t> owner = OwnersOf(sizes, align);
    ASSERT_EQ(layout.elements(), owner.size());
    for (std::size_t begin = 0; begin <= owner.size(); ++begin) {
      for (std::size_t end = begin; end <= owner.size(); ++end) {
        std::size_t at = begin;
        for (const TensorPart& part : layout.Parts({begin, end - begin})) {
          while (owner[at] == kPadding) ++at;
          ASSERT_EQ(part.pool_begin, at);
          ASSERT_GT(part.count, 0U);
          ASSERT_EQ(part.pool_begin, layout.offset(part.tensor) + part.begin);
          for (std::size_t i = 0; i < part.count; ++i) {
            ASSERT_EQ(owner[at + i], part.tensor);
          }
          at += part.count;
          ASSERT_TRUE(at == end || owner[at] != part.tensor) << "not maximal";
        }
        while (at < end && owner[at] == kPadding) ++at;
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(PoolLayout, BeginsEveryTensorThatHasElementsAtAMultiple) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::size_t> sizes = RandomSizes(random, 127);
    const std::size_t align = 1 + random() % 32;
    const PoolLayout layout = PoolLayout::Create(sizes, align).value();
    EXPECT_EQ(layout.align_elements(), align);
    std::size_t end = 0;
    for (const std::size_t i : layout.order()) {
      ASSERT_EQ(layout.tensor_elements(i), sizes[i]);
      ASSERT_GE(layout.offset(i), end);
      if (sizes[i] > 0) {
        ASSERT_EQ(layout.offset(i) % align, 0U);
        ASSERT_LT(layout.offset(i), end + align) << "more than is needed";
      }
      end = layout.offset(i) + sizes[i];
      ASSERT_LE(end, layout.written_end(i));
      ASSERT_EQ(layout.written_end(i),
                i == 0 ? layout.elements() : layout.offset(i - 1));
    }
    ASSERT_EQ(layout.elements(), end) << "padding behind the last tensor";
  }
}

TEST(PoolLayout, AlignsForLinesIfThatCostsLessThanOnePercent) {
  const auto align = [](const std::vector<std::size_t>& sizes,
                        std::size_t element_bytes) {
    return PoolLayout::Aligned(sizes, element_bytes).value().align_elements();
  };
  // A bias of ten classes in front of 4,096 gradients and of 1,024.
  EXPECT_EQ(align({4096, 10}, 4), 32U);  // 22 elements of padding.
  EXPECT_EQ(align({1024, 10}, 4), 4U);
  EXPECT_EQ(align({4096, 10}, 2), 8U);  // 54 elements.
  EXPECT_EQ(align({16384, 10}, 2), 64U);
  EXPECT_EQ(align({10, 32}, 4), 32U) << "no padding at all";
  EXPECT_EQ(align({10, 28}, 4), 4U);
  EXPECT_EQ(align({}, 4), 32U);
  EXPECT_EQ(align({1}, 8), 16U);
}

// The paper's numbers of chunks of 32,000 are those of 60,967,976 gradients in
// 26 tensors and 25,549,352 in 153. No sizes of these tensors have so much
// padding that there is one chunk more.
TEST(PoolLayout, ChangesNoNumberOfChunksOfThePaper) {
  const auto chunks = [](const std::vector<std::size_t>& sizes,
                         std::size_t element_bytes) {
    const PoolLayout layout = PoolLayout::Aligned(sizes, element_bytes).value();
    return (layout.elements() + 31999) / 32000;
  };
  for (const std::size_t bytes : {std::size_t{2}, std::size_t{4}}) {
    std::vector<std::size_t> alexnet(25, 97);
    alexnet.push_back(60'967'976 - 25 * 97);
    EXPECT_EQ(chunks(alexnet, bytes), 1906U);
    std::vector<std::size_t> resnet(152, 97);
    resnet.push_back(25'549'352 - 152 * 97);
    EXPECT_EQ(chunks(resnet, bytes), 799U);
  }
}

}  // namespace
}  // namespace gradientflow
