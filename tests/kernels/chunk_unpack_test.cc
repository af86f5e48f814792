#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kOldFlag = 7;  // Neither 0 nor 1: left alone, it stays.

struct Buffers {
  ChunkRange range;
  Slots slots;
  std::uint32_t first_slot;
  Elements grads;
  Elements packed;
  Elements norms;
  Records<std::uint32_t> nonfinite;
  float scale = 1;
  const Elements* marks = nullptr;
};

class ChunkUnpack : public EveryChunkTable {
 protected:
  Buffers Make(const ChunkRange& range, DType type, DType packed_type,
               Sent sent) {
    const Slots slots = MakeSlots(ChunksOf(range), sent, random_);
    const std::uint32_t first_slot =
        FirstSlot(range, slots, static_cast<std::uint32_t>(random_() % 4));
    return {
        range,
        slots,
        first_slot,
        RandomElements(type, range.elements),
        RandomElements(packed_type, PackedElements(range, slots, first_slot)),
        RandomElements(DType::kFloat32, ChunksOf(range)),
        Records<std::uint32_t>(1, kOldFlag)};
  }

  int Run(Buffers& b, float norm_scale, bool watch = true) {
    return Launch(&ChunkKernelTable::chunk_unpack,
                  {.range = b.range,
                   .slots = b.slots.data(),
                   .grads = b.grads.data(),
                   .type = b.grads.type(),
                   .packed = b.packed.data(),
                   .packed_type = b.packed.type(),
                   .first_slot = b.first_slot,
                   .norm_scale = norm_scale,
                   .norms = static_cast<float*>(b.norms.data()),
                   .nonfinite = watch ? b.nonfinite.data() : nullptr,
                   .scale = b.scale,
                   .marks = b.marks == nullptr ? nullptr : b.marks->data()});
  }

  // The effect of the call on `b`, except the norms; returns sums of
  // magnitudes.
  static std::vector<double> Oracle(Buffers& b) {
    std::vector<double> sums(ChunksOf(b.range));
    for (std::size_t c = 0; c < sums.size(); ++c) {
      if (!InRange(b.range, c) || b.slots[c] == kNotSent) continue;
      const std::size_t to = ChunkBegin(b.range, c);
      const std::size_t from = PackedBegin(b.range, b.slots, b.first_slot, c);
      for (std::size_t i = 0; i < ChunkCount(b.range, c); ++i) {
        b.grads.Set(to + i, RoundTo(DType::kFloat32,
                                    double{b.scale} * b.packed.Get(from + i)));
        sums[c] += std::fabs(b.grads.Get(to + i));
        if (IsNonFinite(b.grads, to + i)) b.nonfinite[0] = 1;
      }
    }
    return sums;
  }

  static void ExpectSame(const Buffers& seen, const Buffers& expected) {
    ASSERT_TRUE(seen.slots.SameBits(expected.slots));
    ASSERT_TRUE(Matches(seen.grads, expected.grads));
    ASSERT_TRUE(Matches(seen.packed, expected.packed));
    ASSERT_EQ(seen.nonfinite[0], expected.nonfinite[0]);
    ASSERT_TRUE(seen.nonfinite.CanariesIntact());
  }

  void ExpectOracle(Buffers& b, float norm_scale) {
    Buffers expected = b;
    const std::vector<double> sums = Oracle(expected);
    ASSERT_EQ(Run(b, norm_scale), 0);
    ExpectSame(b, expected);
    for (std::size_t c = 0; c < sums.size(); ++c) {
      if (InRange(b.range, c) && b.slots[c] != kNotSent) {
        ASSERT_TRUE(NormIs(static_cast<float>(b.norms.Get(c)), sums[c],
                           norm_scale, ChunkCount(b.range, c)));
      } else {
        ASSERT_EQ(b.norms.Bits(c), expected.norms.Bits(c)) << "chunk " << c;
      }
    }
    ASSERT_TRUE(b.norms.CanariesIntact());
  }

  // The mark of the second of three chunks becomes a NaN.
  void ExpectMark(std::size_t chunk, DType type, DType packed_type) {
    const ChunkRange range = {2 * chunk + 1, chunk, 0, 3};
    Buffers b = Make(range, type, packed_type, Sent::kNone);
    Elements marks(packed_type, 3);
    b.marks = &marks;
    ASSERT_EQ(Run(b, 1), 0);
    EXPECT_EQ(b.nonfinite[0], kOldFlag);
    const Buffers before = b;
    marks.Set(1, std::nan(""));
    ASSERT_EQ(Run(b, 1), 0);
    EXPECT_EQ(b.nonfinite[0], 1U);
    for (std::size_t i = 0; i < range.elements; ++i) {
      if (i / chunk == 1) {
        ASSERT_TRUE(std::isnan(b.grads.Get(i))) << i;
      } else {
        ASSERT_EQ(b.grads.Bits(i), before.grads.Bits(i)) << i;
      }
    }
    EXPECT_TRUE(b.grads.CanariesIntact() && b.nonfinite.CanariesIntact());
    EXPECT_TRUE(b.norms.SameBits(before.norms));
    Buffers sent = Make(range, type, packed_type, Sent::kAll);
    sent.marks = &marks;
    ASSERT_EQ(Run(sent, 1), 0);
    EXPECT_EQ(sent.nonfinite[0], kOldFlag);
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkUnpack);

// At random alignments, hardly any case has both of its streams aligned.
TEST_P(ChunkUnpack, MovesRowsOfEveryPairOfTypes) {
  aligned_ = true;
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const ChunkRange& range : RangesOfRows()) {
        Buffers b = Make(range, type, packed_type, Sent::kAll);
        if (range.count == 3) b.packed.Set(b.packed.size() - 1, kInfinity);
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, 0.125F))
            << "chunks of " << range.chunk_elements;
      }
    }
  }
}

TEST_P(ChunkUnpack, TakesWhatWasSentAndItsNormsAndNothingElse) {
  const float scales[] = {1, 0.125F, 1.0F / 7};
  int round = 0;
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const ChunkRange& range : Ranges()) {
        for (const Sent sent : kSents) {
          Buffers b = Make(range, type, packed_type, sent);
          b.scale = round % 2 == 0 ? 1.0F : 0.3F;
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, scales[round++ % 3]))
              << "chunks of " << range.chunk_elements << " from " << range.first
              << ", count " << range.count;
        }
      }
    }
  }
}

TEST_P(ChunkUnpack, HandlesChunksOfEveryLength) {
  for (std::size_t n = 1; n < 140; ++n) {
    const ChunkRange range{5 * n - n / 2, n, 0, 5};
    Buffers b = Make(range, DType::kBFloat16, DType::kFloat16, Sent::kSome);
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, 1)) << n;
  }
}

// At any place of a chunk: first, middle, last; and in the last chunk.
TEST_P(ChunkUnpack, FlagsAnInfinityOrNaNThatItWrites) {
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
        for (const std::size_t i : {0, 99, 150, 199, 420, 449}) {
          Buffers b = Make({450, 100, 0, 5}, type, packed_type, Sent::kAll);
          b.packed.Set(i, value);
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, 1));
          ASSERT_EQ(b.nonfinite[0], 1U);
        }
      }
    }
  }
}

TEST_P(ChunkUnpack, FlagsWhatOverflowsTheGradientsType) {
  for (const double value : {65519.0, 65520.0, -1e30}) {
    Buffers b =
        Make({64, 32, 0, 2}, DType::kFloat16, DType::kFloat32, Sent::kAll);
    b.packed.Set(40, value);
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, 1));
    EXPECT_EQ(b.nonfinite[0], value == 65519 ? kOldFlag : 1);
  }
}

// Kept chunks, and chunks outside of the range, are not examined.
TEST_P(ChunkUnpack, FlagsNothingThatItDoesNotWrite) {
  Buffers b =
      Make({60, 10, 0, 6}, DType::kFloat32, DType::kFloat32, Sent::kAll);
  b.range.first = 2;
  b.range.count = 2;
  for (std::size_t c = 0; c < 6; ++c) b.slots[c] = kNotSent;
  b.slots[1] = 0;
  b.slots[3] = 1;
  b.packed.Set(3, kInfinity);  // Chunk 1's, before the range.
  b.packed.Set(25, kInfinity);
  b.grads.Set(25, std::nan(""));
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, 1));
  EXPECT_EQ(b.nonfinite[0], kOldFlag);
}

// Finite marks of kept chunks have no effect, and no marks of sent chunks have.
// At chunks of an even length, both streams are aligned.
TEST_P(ChunkUnpack, SpoilsKeptChunksWithAMarkThatIsNotFinite) {
  for (const std::size_t chunk : {3UL, 300UL, 3000UL, 3001UL, 66001UL}) {
    aligned_ = chunk % 2 == 0;
    for (const DType type : kGradientTypes) {
      for (const DType packed_type : kGradientTypes) {
        if (chunk > 5000 && packed_type != type) continue;
        SCOPED_TRACE(::testing::Message() << "chunks of " << chunk);
        ASSERT_NO_FATAL_FAILURE(ExpectMark(chunk, type, packed_type));
      }
    }
  }
}

TEST_P(ChunkUnpack, DoesWithoutAFlag) {
  Buffers b =
      Make({450, 100, 0, 5}, DType::kFloat16, DType::kFloat32, Sent::kAll);
  b.packed.Set(123, kInfinity);
  ASSERT_EQ(Run(b, 1, false), 0);
  EXPECT_EQ(b.grads.Get(123), kInfinity);
  EXPECT_EQ(b.nonfinite[0], kOldFlag);
}

TEST_P(ChunkUnpack, RepeatsItsBitsAtAnyAddress) {
  const ChunkRange range{96000, 32000, 0, 3};
  Elements values(DType::kBFloat16, 32000);
  values.Fill(random_);
  std::uint64_t first = 0;
  for (int round = 0; round < 8; ++round) {
    Buffers b = Make(range, DType::kFloat32, DType::kBFloat16, Sent::kAll);
    for (std::size_t i = 0; i < b.packed.size(); ++i) {
      b.packed.SetBits(i, values.Bits(i % 32000));
    }
    ASSERT_EQ(Run(b, 0.3F), 0);
    if (round == 0) first = b.norms.Bits(0);
    for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(b.norms.Bits(c), first);
  }
}

TEST_P(ChunkUnpack, RefusesOtherTypesAndRangesAndTouchesNothing) {
  const auto expect_refused = [&](Buffers b) {
    const Buffers before = b;
    EXPECT_EQ(Run(b, 1), EINVAL);
    ExpectSame(b, before);
    EXPECT_TRUE(b.norms.SameBits(before.norms));
  };
  const ChunkRange good{20, 7, 0, 3};
  for (const DType type : kPlainTypes) {
    expect_refused(Make(good, type, DType::kFloat32, Sent::kSome));
    expect_refused(Make(good, DType::kFloat32, type, Sent::kSome));
  }
  for (const ChunkRange& bad : BadRanges()) {
    Buffers b = Make(good, DType::kFloat16, DType::kFloat32, Sent::kSome);
    b.range = bad;
    expect_refused(b);
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
