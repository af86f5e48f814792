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

struct How {
  float scale = 1;
  bool zero_kept = false;
  float keep_factor = 1;
  float norm_scale = 1;
  bool in_gradients = false;  // The residual is null.
};

struct Buffers {
  ChunkRange range;
  Slots slots;
  std::uint32_t first_slot;
  Elements grads;
  Elements residual;
  Elements packed;
  Elements norms;
};

class ChunkResidual : public EveryChunkTable {
 protected:
  Buffers Make(const ChunkRange& range, DType type, DType packed_type,
               const Slots& slots, std::uint32_t gap) {
    const std::uint32_t first_slot = FirstSlot(range, slots, gap);
    return {
        range,
        slots,
        first_slot,
        RandomElements(type, range.elements),
        RandomElements(DType::kFloat32, range.elements),
        RandomElements(packed_type, PackedElements(range, slots, first_slot)),
        RandomElements(DType::kFloat32, ChunksOf(range))};
  }

  Buffers Make(const ChunkRange& range, DType type, DType packed_type,
               Sent sent) {
    return Make(range, type, packed_type,
                MakeSlots(ChunksOf(range), sent, random_),
                static_cast<std::uint32_t>(random_() % 4));
  }

  int Run(Buffers& b, How how) {
    return Launch(
        &ChunkKernelTable::chunk_residual,
        {.range = b.range,
         .slots = b.slots.data(),
         .grads = b.grads.data(),
         .type = b.grads.type(),
         .residual = how.in_gradients ? nullptr
                                      : static_cast<float*>(b.residual.data()),
         .packed = b.packed.data(),
         .packed_type = b.packed.type(),
         .first_slot = b.first_slot,
         .scale = how.scale,
         .zero_kept = how.zero_kept,
         .keep_factor = how.keep_factor,
         .norm_scale = how.norm_scale,
         .norms = static_cast<float*>(b.norms.data())});
  }

  // What the residual keeps of a sum that was sent.
  static double Left(const Buffers& b, double s, double packed, float scale) {
    if (b.grads.type() == DType::kFloat32) return 0;
    const double back = RoundTo(DType::kFloat32, packed * double{1.0F / scale});
    const double left = RoundTo(DType::kFloat32, s - back);
    return std::isfinite(left) ? left : 0;
  }

  // The effect of the call on `b`, except the norms; returns sums of
  // magnitudes.
  static std::vector<double> Oracle(Buffers& b, How how) {
    std::vector<double> sums(ChunksOf(b.range));
    for (std::size_t c = 0; c < sums.size(); ++c) {
      if (!InRange(b.range, c)) continue;
      const bool sent = b.slots[c] != kNotSent;
      const std::size_t begin = ChunkBegin(b.range, c);
      for (std::size_t i = 0; i < ChunkCount(b.range, c); ++i) {
        const double grad = b.grads.Get(begin + i);
        const double s =
            how.in_gradients
                ? grad
                : RoundTo(DType::kFloat32, grad + b.residual.Get(begin + i));
        const double kept =
            RoundTo(DType::kFloat32, double{how.keep_factor} * s);
        sums[c] += std::fabs(s);
        if (!how.in_gradients) b.residual.Set(begin + i, kept);
        if (sent) {
          const std::size_t at =
              PackedBegin(b.range, b.slots, b.first_slot, c) + i;
          b.packed.Set(at, RoundTo(DType::kFloat32, double{how.scale} * s));
          if (how.in_gradients) continue;
          b.residual.Set(begin + i, Left(b, s, b.packed.Get(at), how.scale));
        } else if (how.in_gradients) {
          b.grads.Set(begin + i, kept);
        } else if (how.zero_kept) {
          b.grads.Set(begin + i, 0);
        }
      }
    }
    return sums;
  }

  static void ExpectSame(const Buffers& seen, const Buffers& expected) {
    ASSERT_TRUE(seen.slots.SameBits(expected.slots));
    ASSERT_TRUE(seen.slots.CanariesIntact());
    ASSERT_TRUE(Matches(seen.grads, expected.grads));
    ASSERT_TRUE(Matches(seen.residual, expected.residual));
    ASSERT_TRUE(Matches(seen.packed, expected.packed));
  }

  void ExpectOracle(Buffers& b, How how) {
    Buffers expected = b;
    const std::vector<double> sums = Oracle(expected, how);
    ASSERT_EQ(Run(b, how), 0);
    ExpectSame(b, expected);
    for (std::size_t c = 0; c < sums.size(); ++c) {
      if (InRange(b.range, c) && b.slots[c] == kNotSent) {
        ASSERT_TRUE(NormIs(static_cast<float>(b.norms.Get(c)), sums[c],
                           how.norm_scale, ChunkCount(b.range, c)));
      } else {
        ASSERT_EQ(b.norms.Bits(c), expected.norms.Bits(c)) << "chunk " << c;
      }
    }
    ASSERT_TRUE(b.norms.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkResidual);

// At random alignments, hardly any case has all of its streams aligned.
TEST_P(ChunkResidual, MovesRowsOfEveryPairOfTypes) {
  aligned_ = true;
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const ChunkRange& range : RangesOfRows()) {
        for (const bool in_gradients : {false, true}) {
          for (const Sent sent : {Sent::kNone, Sent::kAll}) {
            if (sent == Sent::kAll && range.count == 1) continue;
            Buffers b = Make(range, type, packed_type, sent);
            ASSERT_NO_FATAL_FAILURE(
                ExpectOracle(b, {0.25F, !in_gradients, 0.7F, 1, in_gradients}))
                << "chunks of " << range.chunk_elements;
          }
        }
      }
    }
  }
}

TEST_P(ChunkResidual, PacksWhatIsSentAndKeepsTheRest) {
  const How hows[] = {{1, true, 0.9F, 1},
                      {1.0F / 3, false, 1, 0.125F},
                      {0.25F, true, 0.7F, 1.0F / 7}};
  int round = 0;
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const ChunkRange& range : Ranges()) {
        for (const Sent sent : kSents) {
          Buffers b = Make(range, type, packed_type, sent);
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, hows[round++ % 3]))
              << "chunks of " << range.chunk_elements << " from " << range.first
              << ", count " << range.count;
        }
      }
    }
  }
}

TEST_P(ChunkResidual, KeepsAResidualInTheGradients) {
  const How hows[] = {{1, false, 0.9F, 1, true},
                      {0.25F, false, 1, 0.5F, true},
                      {1.0F / 3, false, 1.0F / 7, 1, true}};
  int round = 0;
  for (const DType type : kGradientTypes) {
    for (const DType packed_type : kGradientTypes) {
      for (const ChunkRange& range : Ranges()) {
        const Sent sent = kSents[round % 4 % 3];
        Buffers b = Make(range, type, packed_type, sent);
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, hows[round++ % 3]))
            << "chunks of " << range.chunk_elements << " from " << range.first
            << ", count " << range.count;
      }
    }
  }
  Buffers b = Make({20, 7, 0, 3}, DType::kFloat32, DType::kFloat32, Sent::kAll);
  EXPECT_EQ(Run(b, {1, true, 1, 1, true}), EINVAL) << "zero_kept";
}

TEST_P(ChunkResidual, HandlesChunksOfEveryLength) {
  for (std::size_t n = 1; n < 140; ++n) {
    const ChunkRange range{5 * n - n / 2, n, 0, 5};
    Buffers b = Make(range, DType::kFloat16, DType::kBFloat16, Sent::kSome);
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, {1, n % 2 == 0, 0.5F, 1})) << n;
  }
}

TEST_P(ChunkResidual, RoundsWhatOverflowsToAnInfinity) {
  Buffers b =
      Make({1200, 1000, 0, 2}, DType::kFloat32, DType::kFloat16, Sent::kAll);
  for (std::size_t i = 0; i < 1200; ++i) {
    b.grads.Set(i, 65400 + static_cast<double>(i % 311));
    b.residual.Set(i, i % 2 == 0 ? 0.5 : -200000);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, {}));
  EXPECT_EQ(b.packed.Get(130), kInfinity);
  EXPECT_EQ(b.packed.Get(131), -kInfinity);
}

TEST_P(ChunkResidual, CarriesInfinitiesAndNaNsIntoSumsAndNorms) {
  for (const DType type : kGradientTypes) {
    for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
      for (const bool in_residual : {false, true}) {
        const Sent sent = in_residual ? Sent::kSome : Sent::kNone;
        Buffers b = Make({700, 100, 1, 5}, type, type, sent);
        (in_residual ? b.residual : b.grads).Set(155, value);
        (in_residual ? b.residual : b.grads).Set(399, value);
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(b, {1, false, 0.9F, 0.5F}));
      }
    }
  }
}

// The order of a norm's sum depends on the length of the chunk alone.
TEST_P(ChunkResidual, RepeatsItsBitsWhereverTheChunkLies) {
  for (const std::size_t n : {1000, 9000, 70000}) {
    Elements grads(DType::kFloat16, n);
    Elements residual(DType::kFloat32, n);
    grads.Fill(random_);
    residual.Fill(random_);
    std::uint64_t first = 0;
    for (std::size_t where = 0; where < 6; ++where) {
      // The chunk is the first, a middle or the last one of the pool, and the
      // range is the whole pool or that chunk alone.
      const std::size_t c = where % 3;
      const ChunkRange range =
          where < 3 ? ChunkRange{3 * n, n, 0, 3} : ChunkRange{3 * n, n, c, 1};
      Buffers b = Make(range, DType::kFloat16, DType::kFloat32, Sent::kNone);
      for (std::size_t i = 0; i < n; ++i) {
        b.grads.SetBits(c * n + i, grads.Bits(i));
        b.residual.SetBits(c * n + i, residual.Bits(i));
      }
      Buffers again = b;
      ASSERT_EQ(Run(b, {1, true, 0.9F, 0.3F}), 0);
      ASSERT_EQ(Run(again, {1, true, 0.9F, 0.3F}), 0);
      ExpectSame(again, b);
      ASSERT_TRUE(again.norms.SameBits(b.norms));
      if (where == 0) first = b.norms.Bits(c);
      ASSERT_EQ(b.norms.Bits(c), first) << "chunk " << c << " of " << n;
    }
  }
}

TEST_P(ChunkResidual, RefusesOtherTypesAndRangesAndTouchesNothing) {
  const auto expect_refused = [&](Buffers b) {
    const Buffers before = b;
    EXPECT_EQ(Run(b, {}), EINVAL);
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
