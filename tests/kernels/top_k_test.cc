#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "gradientflow/csc/chunk_selector.h"
#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kOldFlag = 7;  // Neither 0 nor 1: left alone, it stays.

// The distribution of the norms.
enum class Spread {
  kSmooth,     // Hardly a tie.
  kFewValues,  // Nearly all tie.
  kOneValue,   // All tie.
  kCloseBits,  // Differ in the last bits only.
  kWide,       // Over all exponents, zeros and denormals too.
  kBroken,     // Some infinities and NaNs of either sign, and ties.
};
constexpr Spread kSpreads[] = {Spread::kSmooth,   Spread::kFewValues,
                               Spread::kOneValue, Spread::kCloseBits,
                               Spread::kWide,     Spread::kBroken};

float RandomNorm(Spread spread, std::mt19937_64& random) {
  const auto any = static_cast<float>(random() % 1000003);
  const float broken[] = {kInfinity, -kInfinity, kNaN, -kNaN, 0, 0.5F};
  switch (spread) {
    case Spread::kSmooth:
      return any * 0.37F;
    case Spread::kFewValues:
      return static_cast<float>(random() % 3) * 0.25F;
    case Spread::kOneValue:
      return 1.5F;
    case Spread::kCloseBits:
      return 1 + static_cast<float>(random() % 64) * 0x1p-23F;
    case Spread::kWide:
      return random() % 8 == 0
                 ? 0
                 : std::ldexp(1 + any * 1e-6F,
                              static_cast<int>(random() % 276) - 148);
    case Spread::kBroken:
      return random() % 4 == 0 ? broken[random() % 6] : any;
  }
  return 0;
}

struct Case {
  Records<float> norms;
  Records<std::uint8_t> always;
  std::size_t k;
};

// Many repeats of every norm; about one chunk in `always_of` is always sent.
Case MakeCase(std::size_t chunks, Spread spread, int always_of,
              std::mt19937_64& random) {
  Case c{Records<float>(chunks), Records<std::uint8_t>(chunks), 0};
  for (std::size_t i = 0; i < chunks; ++i) {
    c.norms[i] = RandomNorm(spread, random);
    if (always_of == 0 || random() % static_cast<unsigned>(always_of) != 0) {
      continue;
    }
    c.always[i] = random() % 2 == 0 ? 1 : 255;
  }
  return c;
}

std::size_t AlwaysCount(const Case& c) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < c.always.size(); ++i) count += c.always[i] != 0;
  return count;
}

// The oracle sorts all chunks as the header says.
std::vector<std::uint8_t> Oracle(const Case& c) {
  std::vector<std::size_t> ids(c.norms.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&c](std::size_t a, std::size_t b) {
    const bool always_a = c.always[a] != 0;
    const bool always_b = c.always[b] != 0;
    if (always_a != always_b) return always_a;
    const bool finite_a = std::isfinite(c.norms[a]);
    const bool finite_b = std::isfinite(c.norms[b]);
    if (finite_a != finite_b) return finite_b;
    if (finite_a && c.norms[a] != c.norms[b]) return c.norms[a] > c.norms[b];
    return a < b;
  };
  std::sort(ids.begin(), ids.end(), before);
  std::vector<std::uint8_t> selected(ids.size());
  for (std::size_t i = 0; i < c.k; ++i) selected[ids[i]] = 1;
  return selected;
}

class TopK : public EveryChunkTable {
 protected:
  struct Output {
    explicit Output(std::size_t chunks)
        : slots(chunks, 12345), selected(chunks, 99), nonfinite(1, kOldFlag) {}
    Slots slots;
    Records<std::uint8_t> selected;
    Records<std::uint32_t> nonfinite;
  };

  static TopKArgs Args(const Case& c, Output& out) {
    return {.norms = c.norms.data(),
            .always = c.always.data(),
            .chunks = c.norms.size(),
            .k = c.k,
            .slots = out.slots.data(),
            .selected = out.selected.data(),
            .workspace = nullptr,
            .nonfinite = out.nonfinite.data()};
  }

  // The workspace has the requested length, and is not cleared.
  int Run(TopKArgs args, std::size_t chunks) {
    Records<std::uint64_t> workspace((TopKWorkspaceBytes(chunks) + 7) / 8,
                                     random_());
    args.workspace = workspace.data();
    const int error = Launch(&ChunkKernelTable::top_k, args);
    EXPECT_TRUE(workspace.CanariesIntact());
    return error;
  }

  static void ExpectSelected(const Output& out,
                             const std::vector<std::uint8_t>& selected) {
    std::uint32_t slot = 0;
    for (std::size_t i = 0; i < selected.size(); ++i) {
      ASSERT_EQ(int{out.selected[i]}, int{selected[i]}) << "chunk " << i;
      ASSERT_EQ(out.slots[i], selected[i] != 0 ? slot++ : kNotSent) << i;
    }
    ASSERT_TRUE(out.slots.CanariesIntact());
    ASSERT_TRUE(out.selected.CanariesIntact());
    ASSERT_TRUE(out.nonfinite.CanariesIntact());
  }

  void ExpectOracle(const Case& c) {
    Output out(c.norms.size());
    const Case before = c;
    ASSERT_EQ(Run(Args(c, out), c.norms.size()), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectSelected(out, Oracle(c)))
        << c.norms.size() << " chunks, k " << c.k;
    const float* norms = c.norms.data();
    const bool finite =
        std::all_of(norms, norms + c.norms.size(),
                    [](float norm) { return std::isfinite(norm); });
    ASSERT_EQ(out.nonfinite[0], finite ? kOldFlag : 1);
    ASSERT_TRUE(c.norms.SameBits(before.norms));
    ASSERT_TRUE(c.always.SameBits(before.always));
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(TopK);

TEST_P(TopK, SelectsAsSortingDoesForEveryKOfSmallPools) {
  for (std::size_t chunks = 0; chunks < 34; ++chunks) {
    for (const Spread spread : kSpreads) {
      Case c = MakeCase(chunks, spread, chunks % 2 == 0 ? 0 : 4, random_);
      for (c.k = AlwaysCount(c); c.k <= chunks; ++c.k) {
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
      }
    }
  }
}

TEST_P(TopK, SelectsAsSortingDoesAroundWarpsAndBlocks) {
  for (const std::size_t chunks :
       {63,  64,   65,   127,  128,  129,  255,  256,  257,  511,
        513, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 4097, 5000}) {
    for (const Spread spread : kSpreads) {
      Case c = MakeCase(chunks, spread, chunks % 2 == 0 ? 0 : 9, random_);
      const std::size_t always = AlwaysCount(c);
      for (const std::size_t more :
           {std::size_t{0}, std::size_t{1}, (chunks - always) * 15 / 100,
            chunks - always}) {
        c.k = always + more;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
      }
    }
  }
}

TEST_P(TopK, SelectsAsSortingDoesForRandomCases) {
  for (int round = 0; round < (kSmallCases ? 30 : 300); ++round) {
    Case c = MakeCase(1 + random_() % 5000, kSpreads[random_() % 6],
                      static_cast<int>(random_() % 30), random_);
    const std::size_t always = AlwaysCount(c);
    c.k = always + random_() % (c.norms.size() - always + 1);
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
  }
}

TEST_P(TopK, SelectsFromMoreChunksThanOneBlockHoldsAtOnce) {
  for (const std::size_t chunks : {16385, 30011, 200003}) {
    for (const Spread spread : kSpreads) {
      if ((kSmallCases || chunks > 100000) && spread != kSpreads[0]) continue;
      Case c = MakeCase(chunks, spread, 50, random_);
      c.k = AlwaysCount(c) + chunks / 7;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
    }
  }
}

TEST_P(TopK, EqualsTheChunkSelectorOfTheCore) {
  for (int round = 0; round < (kSmallCases ? 20 : 200); ++round) {
    const std::size_t chunks = 1 + random_() % 3000;
    Case c = MakeCase(chunks, kSpreads[random_() % 6],
                      static_cast<int>(random_() % 20), random_);
    ChunkSelectorOptions config{.pool_elements = chunks, .chunk_elements = 1};
    config.sparsity = static_cast<double>(random_() % 1000) / 1000;
    for (std::size_t i = 0; i < chunks; ++i) {
      config.always_dense.push_back(c.always[i] != 0 ? 1 : 0);
    }
    auto selector = ChunkSelector::Create(config);
    ASSERT_TRUE(selector.ok());
    ASSERT_TRUE(
        selector.value().Select(1, std::span(c.norms.data(), chunks)).ok());
    c.k = selector.value().selected_count();
    Output out(chunks);
    ASSERT_EQ(Run(Args(c, out), chunks), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectSelected(out, selector.value().selected()));
  }
}

TEST_P(TopK, RanksInfinitiesAndNaNsAlikeAndAboveTheRest) {
  Case c{Records<float>(8), Records<std::uint8_t>(8), 3};
  const float norms[] = {3e38F,      kNaN,      5,     kInfinity,
                         -kInfinity, kInfinity, -kNaN, 0};
  std::copy(std::begin(norms), std::end(norms), c.norms.data());
  Output out(8);
  ASSERT_EQ(Run(Args(c, out), 8), 0);
  ExpectSelected(out, {0, 1, 0, 1, 1, 0, 0, 0});
  EXPECT_EQ(out.nonfinite[0], 1U);
}

TEST_P(TopK, TakesZerosOfEitherSignAsATie) {
  Case c{Records<float>(5), Records<std::uint8_t>(5), 2};
  const float norms[] = {-0.0F, 0, -0.0F, 0, 0};
  std::copy(std::begin(norms), std::end(norms), c.norms.data());
  Output out(5);
  ASSERT_EQ(Run(Args(c, out), 5), 0);
  ExpectSelected(out, {1, 1, 0, 0, 0});
}

// Norms of chunks that are always sent, or not selected, count too.
TEST_P(TopK, FlagsEveryNormThatIsNotFinite) {
  for (const std::size_t where : {0, 1, 700, 999}) {
    Case c = MakeCase(1000, Spread::kSmooth, 0, random_);
    c.always[where] = 1;
    c.k = 1;
    c.norms[where] = kNaN;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
    c.always[where] = 0;
    c.k = 0;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
  }
}

TEST_P(TopK, DoesWithoutAFlagAndWithoutChunksThatAreAlwaysSent) {
  Case c = MakeCase(777, Spread::kBroken, 0, random_);
  c.k = 100;
  Output out(777);
  TopKArgs args = Args(c, out);
  args.always = nullptr;
  args.nonfinite = nullptr;
  ASSERT_EQ(Run(args, 777), 0);
  ExpectSelected(out, Oracle(c));
  EXPECT_EQ(out.nonfinite[0], kOldFlag);
}

TEST_P(TopK, RefusesMoreThanThereAreAndTouchesNothing) {
  Case c = MakeCase(10, Spread::kSmooth, 0, random_);
  c.k = 11;
  Output out(10);
  EXPECT_EQ(Run(Args(c, out), 10), EINVAL);
  c.k = 3;
  TopKArgs args = Args(c, out);
  args.chunks = (std::size_t{1} << 31) + 1;
  EXPECT_EQ(Run(args, 10), EINVAL);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(out.slots[i], 12345U);
    EXPECT_EQ(int{out.selected[i]}, 99);
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
