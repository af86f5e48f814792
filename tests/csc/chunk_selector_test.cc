#include "gradientflow/csc/chunk_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/chunk_kernels.h"

namespace gradientflow {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ChunkSelector Make(const ChunkSelectorOptions& config) {
  return ChunkSelector::Create(config).value();
}

std::size_t Ones(const Bytes& bytes) {
  return static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), 1));
}

TEST(ChunkSelector, HasThePapersNumberOfChunks) {
  EXPECT_EQ(Make({.pool_elements = 60967976}).chunks(), 1906U);  // AlexNet
  EXPECT_EQ(Make({.pool_elements = 25549352}).chunks(), 799U);   // ResNet-50
}

TEST(ChunkSelector, CutsThePoolAndLeavesTheLastChunkShort) {
  const ChunkSelector selector =
      Make({.pool_elements = 10, .chunk_elements = 4});
  ASSERT_EQ(selector.chunks(), 3U);
  EXPECT_EQ(selector.chunk(0).begin, 0U);
  EXPECT_EQ(selector.chunk(1).begin, 4U);
  EXPECT_EQ(selector.chunk(1).count, 4U);
  EXPECT_EQ(selector.chunk(2).begin, 8U);
  EXPECT_EQ(selector.chunk(2).count, 2U);
}

TEST(ChunkSelector, StartsWithEverythingSelected) {
  const ChunkSelector selector =
      Make({.pool_elements = 9, .chunk_elements = 3, .sparsity = 0.9});
  EXPECT_EQ(selector.selected(), Bytes(3, 1));
  EXPECT_EQ(selector.selected_count(), 3U);
  EXPECT_EQ(selector.CountAt(0), 3U);
}

TEST(ChunkSelector, SelectsTheLargestNorms) {
  ChunkSelector selector =
      Make({.pool_elements = 6, .chunk_elements = 1, .sparsity = 0.5});
  ASSERT_TRUE(selector.Select(1, std::vector<float>{1, 6, 2, 5, 3, 4}).ok());
  EXPECT_EQ(selector.selected(), (Bytes{0, 1, 0, 1, 0, 1}));
}

TEST(ChunkSelector, GivesTiesToTheLowerId) {
  ChunkSelector selector =
      Make({.pool_elements = 6, .chunk_elements = 1, .sparsity = 0.5});
  ASSERT_TRUE(selector.Select(1, std::vector<float>(6, 2.0F)).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 1, 1, 0, 0, 0}));
  ASSERT_TRUE(
      selector.Select(2, std::vector<float>{0.0F, -0.0F, 0, 7, 0, 0}).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 1, 0, 1, 0, 0}));
}

TEST(ChunkSelector, RaisesSparsityLinearlyDuringWarmup) {
  const ChunkSelector selector = Make({.pool_elements = 1000,
                                       .chunk_elements = 1,
                                       .sparsity = 0.8,
                                       .warmup_steps = 4});
  EXPECT_EQ(selector.CountAt(0), 1000U);
  EXPECT_EQ(selector.CountAt(1), 800U);
  EXPECT_EQ(selector.CountAt(2), 600U);
  EXPECT_EQ(selector.CountAt(3), 400U);
  EXPECT_EQ(selector.CountAt(4), 200U);
  EXPECT_EQ(selector.CountAt(5), 200U);
  EXPECT_EQ(selector.CountAt(std::numeric_limits<std::uint64_t>::max()), 200U);
}

TEST(ChunkSelector, IsSparseFromStepOneWithoutWarmup) {
  const ChunkSelector selector =
      Make({.pool_elements = 60967976, .sparsity = 0.85});
  EXPECT_EQ(selector.CountAt(0), 1906U);
  EXPECT_EQ(selector.CountAt(1), 286U);  // round(285.9)
}

TEST(ChunkSelector, SelectsAtLeastOneChunk) {
  ChunkSelector selector =
      Make({.pool_elements = 3, .chunk_elements = 1, .sparsity = 0.99});
  EXPECT_EQ(selector.CountAt(1), 1U);
  ASSERT_TRUE(selector.Select(1, std::vector<float>{0, 0, 0}).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 0, 0}));
}

TEST(ChunkSelector, CountsAlwaysDenseChunksWithinK) {
  ChunkSelector selector = Make({.pool_elements = 6,
                                 .chunk_elements = 1,
                                 .sparsity = 0.5,
                                 .always_dense = {1, 0, 0, 0, 1, 0}});
  EXPECT_EQ(selector.CountAt(1), 3U);
  ASSERT_TRUE(selector.Select(1, std::vector<float>{0, 1, 2, 9, 0, 8}).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 0, 0, 1, 1, 0}));
}

TEST(ChunkSelector, KeepsAllAlwaysDenseChunksWhenTheyAreMoreThanK) {
  ChunkSelector selector = Make({.pool_elements = 6,
                                 .chunk_elements = 1,
                                 .sparsity = 0.9,
                                 .always_dense = {0, 1, 0, 1, 0, 1}});
  EXPECT_EQ(selector.CountAt(1), 3U);
  ASSERT_TRUE(selector.Select(1, std::vector<float>(6, 1.0F)).ok());
  EXPECT_EQ(selector.selected(), (Bytes{0, 1, 0, 1, 0, 1}));
}

TEST(ChunkSelector, SendsNonfiniteChunksAtOnceInOrderOfTheirIds) {
  ChunkSelector selector =
      Make({.pool_elements = 8, .chunk_elements = 1, .sparsity = 0.5});
  const float big = std::numeric_limits<float>::max();
  ASSERT_TRUE(
      selector
          .Select(1, std::vector<float>{1, kNan, big, -kInf, 0, kInf, 2, kNan})
          .ok());
  EXPECT_EQ(selector.selected(), (Bytes{0, 1, 0, 1, 0, 1, 0, 1}));
  // Not for ever: once finite again they rank like any other chunk.
  ASSERT_TRUE(
      selector.Select(2, std::vector<float>{9, 1, 9, 1, 9, 1, 9, 1}).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 0, 1, 0, 1, 0, 1, 0}));
  // If there are more of them than k, the lower ids win.
  ASSERT_TRUE(selector.Select(3, std::vector<float>(8, kNan)).ok());
  EXPECT_EQ(selector.selected(), (Bytes{1, 1, 1, 1, 0, 0, 0, 0}));
}

// Compares with a full sort. A second selector with another history (and so
// another order of its internal candidates) must agree, as for ranks that
// joined by restoring.
TEST(ChunkSelector, AgreesWithAFullSortWhateverItsPast) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::size_t chunks = 1 + random() % 97;
    ChunkSelectorOptions config{.pool_elements = chunks * 5,
                                .chunk_elements = 5,
                                .sparsity = (random() % 100) / 100.0};
    for (std::size_t c = 0; c < chunks; ++c) {
      config.always_dense.push_back(random() % 10 == 0 ? 1 : 0);
    }
    ChunkSelector one = Make(config);
    ChunkSelector two = Make(config);
    std::vector<float> norms(chunks);
    for (std::uint64_t step = 1; step < 5; ++step) {
      for (float& norm : norms) norm = static_cast<float>(random() % 20);
      if (random() % 4 == 0) norms[random() % chunks] = kNan;
      ASSERT_TRUE(one.Select(step, norms).ok());
    }
    ASSERT_TRUE(two.Select(9, norms).ok());
    ASSERT_EQ(one.selected(), two.selected());

    std::vector<std::size_t> ids(chunks);
    std::iota(ids.begin(), ids.end(), 0);
    Bytes expected = config.always_dense;
    const auto rank = [&](std::size_t c) {
      return std::isfinite(norms[c]) ? norms[c] : kInf;
    };
    std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
      return rank(a) > rank(b);
    });
    const double k =
        std::round((1 - config.sparsity) * static_cast<double>(chunks));
    for (std::size_t id : ids) {
      if (static_cast<double>(Ones(expected)) >= std::max(1.0, k)) break;
      expected[id] = 1;
    }
    ASSERT_EQ(one.selected(), expected) << "round " << round;
    ASSERT_EQ(one.selected_count(), Ones(expected));
    ASSERT_EQ(one.selected_count(), one.CountAt(4));
  }
}

// How norms are spread.
enum class Spread {
  kSmooth,     // Hardly a tie.
  kFewValues,  // Nearly all tie.
  kCloseBits,  // They differ in the last bits only.
  kWide,       // Over all exponents, zeros and denormals too.
  kBroken,     // Some infinities and NaNs of either sign, and ties.
};

float RandomNorm(Spread spread, std::mt19937& random) {
  const auto any = static_cast<float>(random() % 1000003);
  const float broken[] = {kInf, -kInf, kNan, -kNan, 0, 0.5F};
  switch (spread) {
    case Spread::kSmooth:
      return any * 0.37F;
    case Spread::kFewValues:
      return static_cast<float>(random() % 3) * 0.25F;
    case Spread::kCloseBits:
      return 1 + static_cast<float>(random() % 64) * 0x1p-23F;
    case Spread::kWide:
      return std::ldexp(any * 1e-6F, static_cast<int>(random() % 276) - 148);
    case Spread::kBroken:
      return random() % 4 == 0 ? broken[random() % 6] : any;
  }
  return 0;
}

// The k chunks that come first by what the header says, found by sorting.
Bytes SortedSelection(const std::vector<float>& norms, Bytes selected,
                      std::size_t k) {
  std::vector<std::size_t> ids(norms.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
    const bool finite_a = std::isfinite(norms[a]);
    const bool finite_b = std::isfinite(norms[b]);
    if (selected[a] != selected[b]) return selected[a] > selected[b];
    if (finite_a != finite_b) return finite_b;
    if (finite_a && norms[a] != norms[b]) return norms[a] > norms[b];
    return a < b;
  });
  for (std::size_t i = 0; i < k; ++i) selected[ids[i]] = 1;
  return selected;
}

TEST(ChunkSelector, SelectsAsSortingDoesHoweverTheNormsAreSpread) {
  std::mt19937 random(11);
  std::vector<std::size_t> sizes = {5000, 4097, 50021};
  for (std::size_t chunks = 1; chunks < 70; ++chunks) sizes.push_back(chunks);
  for (const std::size_t chunks : sizes) {
    for (const Spread spread :
         {Spread::kSmooth, Spread::kFewValues, Spread::kCloseBits,
          Spread::kWide, Spread::kBroken}) {
      ChunkSelectorOptions config{.pool_elements = chunks, .chunk_elements = 1};
      config.sparsity = static_cast<double>(random() % 1000) / 1000;
      std::vector<float> norms;
      for (std::size_t c = 0; c < chunks; ++c) {
        norms.push_back(RandomNorm(spread, random));
        config.always_dense.push_back(random() % 9 == 0 ? 1 : 0);
      }
      ChunkSelector selector = Make(config);
      ASSERT_TRUE(selector.Select(1, norms).ok());
      ASSERT_EQ(selector.selected(), SortedSelection(norms, config.always_dense,
                                                     selector.CountAt(1)))
          << chunks << " chunks, spread " << static_cast<int>(spread);
    }
  }
}

TEST(FillSlots, NumbersTheChunksThatAreSent) {
  std::vector<std::uint32_t> slots(5);
  EXPECT_EQ(FillSlots(Bytes{0, 1, 1, 0, 1}, slots.data()), 3U);
  constexpr std::uint32_t kNot = kernels::kNotSent;
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{kNot, 0, 1, kNot, 2}));
}

TEST(ChunkSelector, RefusesNormsOfAnotherPool) {
  ChunkSelector selector = Make({.pool_elements = 3, .chunk_elements = 1});
  const Status status = selector.Select(5, std::vector<float>(4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("step 5: expected 3"), std::string::npos)
      << status.message();
  EXPECT_EQ(selector.selected(), Bytes(3, 1));
}

TEST(ChunkSelector, RefusesSettingsOutOfRange) {
  const ChunkSelectorOptions bad[] = {
      {.pool_elements = 8, .chunk_elements = 0},
      {.pool_elements = 8, .chunk_elements = 1, .sparsity = 1.0},
      {.pool_elements = 8, .chunk_elements = 1, .sparsity = -0.1},
      {.pool_elements = 8, .chunk_elements = 1, .sparsity = kNan},
      {.pool_elements = 8, .chunk_elements = 1, .always_dense = {1}},
  };
  for (const ChunkSelectorOptions& config : bad) {
    EXPECT_EQ(ChunkSelector::Create(config).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(ChunkSelector, ServesAPoolWithoutElements) {
  ChunkSelector selector = Make({.pool_elements = 0, .sparsity = 0.5});
  EXPECT_EQ(selector.chunks(), 0U);
  EXPECT_EQ(selector.CountAt(1), 0U);
  EXPECT_TRUE(selector.Select(1, {}).ok());
}

TEST(ChunkSelector, ContinuesFromARestoredSelection) {
  const ChunkSelectorOptions config{
      .pool_elements = 12, .chunk_elements = 3, .sparsity = 0.5};
  ChunkSelector saved = Make(config);
  ASSERT_TRUE(saved.Select(4, std::vector<float>{1, 3, 2, 4}).ok());
  ChunkSelector restored = Make(config);
  ASSERT_TRUE(restored.Restore(4, saved.selected()).ok());
  EXPECT_EQ(restored.selected(), saved.selected());
  EXPECT_EQ(restored.selected_count(), 2U);
}

TEST(ChunkSelector, RefusesASelectionThatIsNotItsOwn) {
  ChunkSelector selector = Make({.pool_elements = 4,
                                 .chunk_elements = 1,
                                 .sparsity = 0.5,
                                 .always_dense = {0, 0, 0, 1}});
  const Bytes bad[] = {
      {1, 0, 1},     // One chunk short.
      {0, 0, 2, 1},  // Neither 0 nor 1.
      {1, 1, 0, 0},  // Without the always-dense chunk.
      {1, 1, 0, 1},  // Not k chunks.
  };
  for (const Bytes& selection : bad) {
    EXPECT_EQ(selector.Restore(2, selection).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(selector.selected(), Bytes(4, 1));
  }
  EXPECT_TRUE(selector.Restore(2, Bytes{1, 0, 0, 1}).ok());
  EXPECT_FALSE(selector.Restore(0, Bytes{1, 0, 0, 1}).ok());
}

TEST(ChunksTouching, MarksEveryChunkOfTheRanges) {
  const auto touching = [&](const std::vector<Extent>& ranges) {
    return ChunksTouching(ranges, 11, 4);
  };
  EXPECT_EQ(touching({}), (Bytes{0, 0, 0}));
  EXPECT_EQ(touching({{4, 0}, {11, 0}}), (Bytes{0, 0, 0}));
  EXPECT_EQ(touching({{3, 2}, {0, 3}}), (Bytes{1, 1, 0}));
  EXPECT_EQ(touching({{5, 6}}), (Bytes{0, 1, 1}));
  EXPECT_EQ(touching({{0, 4}, {8, 3}}), (Bytes{1, 0, 1}));
}

}  // namespace
}  // namespace gradientflow
