#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// About one element of ten is an infinity or a NaN.
void Spoil(Elements& elements, std::mt19937_64& random) {
  const double values[] = {kInfinity, -kInfinity, std::nan("")};
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (random() % 10 == 0) elements.Set(i, values[random() % 3]);
  }
}

class ChunkRestore : public EveryChunkTable {
 protected:
  int Run(const ChunkRange& range, const Slots& slots, Elements& grads,
          float* residual, float scale) {
    return Launch(&ChunkKernelTable::chunk_restore, {.range = range,
                                                     .slots = slots.data(),
                                                     .grads = grads.data(),
                                                     .type = grads.type(),
                                                     .residual = residual,
                                                     .scale = scale});
  }
  int Run(const ChunkRange& range, const Slots& slots, Elements& grads,
          Elements& residual, float scale) {
    return Run(range, slots, grads, static_cast<float*>(residual.data()),
               scale);
  }

  void ExpectOracleInGradients(const ChunkRange& range, DType type, Sent sent,
                               float scale) {
    const Slots slots = MakeSlots(ChunksOf(range), sent, random_);
    Elements grads = RandomElements(type, range.elements);
    Spoil(grads, random_);
    Elements expected = grads;
    for (std::size_t i = 0; i < range.elements; ++i) {
      const std::size_t c = i / range.chunk_elements;
      if (!InRange(range, c)) continue;
      const double factor = slots[c] != kNotSent ? double{scale} : 1;
      const double back = RoundTo(DType::kFloat32, factor * grads.Get(i));
      expected.Set(i, std::isfinite(back) ? back : 0);
    }
    ASSERT_EQ(Run(range, slots, grads, nullptr, scale), 0);
    ASSERT_TRUE(Matches(grads, expected));
  }

  void ExpectOracle(const ChunkRange& range, DType type, Sent sent,
                    float scale) {
    const Slots slots = MakeSlots(ChunksOf(range), sent, random_);
    Elements grads = RandomElements(type, range.elements);
    Elements residual = RandomElements(DType::kFloat32, range.elements);
    Spoil(grads, random_);
    Spoil(residual, random_);
    const Elements old_grads = grads;
    Elements expected = residual;
    for (std::size_t i = 0; i < range.elements; ++i) {
      const std::size_t c = i / range.chunk_elements;
      if (!InRange(range, c)) continue;
      if (IsNonFinite(expected, i)) expected.Set(i, 0);
      if (slots[c] == kNotSent) continue;
      const double back =
          RoundTo(DType::kFloat32, double{scale} * grads.Get(i));
      expected.Set(i, expected.Get(i) + (std::isfinite(back) ? back : 0));
      if (IsNonFinite(expected, i)) expected.Set(i, 0);
    }
    ASSERT_EQ(Run(range, slots, grads, residual, scale), 0);
    ASSERT_TRUE(Matches(residual, expected));
    ASSERT_TRUE(Matches(grads, old_grads));
  }

  // Tensors of up to `most` elements, with padding between some of them.
  Records<TensorRun> RandomTensors(std::size_t elements, std::size_t most) {
    std::vector<TensorRun> runs;
    for (std::size_t at = random_() % 3; at < elements;) {
      const std::size_t end = std::min(elements, at + 1 + random_() % most);
      runs.push_back({at, end});
      at = end + random_() % 4;
    }
    Records<TensorRun> tensors(runs.size());
    std::copy(runs.begin(), runs.end(), tensors.data());
    return tensors;
  }

  // The residual is as without hidden tensors; their gradients are NaN in the
  // range, and nothing else changes.
  void ExpectHidden(const ChunkRange& range, DType type, Sent sent) {
    const Slots slots = MakeSlots(ChunksOf(range), sent, random_);
    Elements grads = RandomElements(type, range.elements);
    Elements residual = RandomElements(DType::kFloat32, range.elements);
    Spoil(grads, random_);
    Elements expected = residual;
    ASSERT_EQ(Run(range, slots, grads, expected, 0.5F), 0);
    const Records<TensorRun> tensors =
        RandomTensors(range.elements, 2 * range.chunk_elements);
    Elements hidden = grads;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (std::size_t i = tensors.data()[t].begin; i < tensors.data()[t].end;
           ++i) {
        if (!InRange(range, i / range.chunk_elements)) continue;
        hidden.Set(i, std::nan(""));
      }
    }
    ASSERT_EQ(Launch(&ChunkKernelTable::chunk_restore,
                     {.range = range,
                      .slots = slots.data(),
                      .grads = grads.data(),
                      .type = type,
                      .residual = static_cast<float*>(residual.data()),
                      .scale = 0.5F,
                      .hidden = tensors.data(),
                      .hidden_count = tensors.size()}),
              0);
    ASSERT_TRUE(Matches(residual, expected));
    ASSERT_TRUE(Matches(grads, hidden));
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkRestore);

// At random alignments, hardly any case has both of its streams aligned.
TEST_P(ChunkRestore, MovesRowsOfEveryType) {
  aligned_ = true;
  for (const DType type : kGradientTypes) {
    for (const ChunkRange& range : RangesOfRows()) {
      for (const Sent sent : {Sent::kNone, Sent::kAll}) {
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(range, type, sent, 0.3F));
        ASSERT_NO_FATAL_FAILURE(
            ExpectOracleInGradients(range, type, sent, 0.3F));
      }
    }
  }
}

TEST_P(ChunkRestore, GivesBackWhatWasSentAndClearsWhatIsNotFinite) {
  for (const DType type : kGradientTypes) {
    for (const ChunkRange& range : Ranges()) {
      for (const Sent sent : kSents) {
        for (const float scale : {1.0F, 1.0F / 3}) {
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(range, type, sent, scale));
        }
      }
    }
  }
}

TEST_P(ChunkRestore, GivesBackInTheGradients) {
  for (const DType type : kGradientTypes) {
    for (const ChunkRange& range : Ranges()) {
      for (const Sent sent : kSents) {
        for (const float scale : {1.0F, 1.0F / 3}) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectOracleInGradients(range, type, sent, scale));
        }
      }
    }
  }
}

TEST_P(ChunkRestore, ClearsWhatOverflowsOnlyOnceScaled) {
  for (const DType type : kGradientTypes) {
    ExpectOracle({950, 100, 0, 10}, type, Sent::kSome, 0x1p127F);
  }
}

TEST_P(ChunkRestore, TouchesNothingUnlessTheFlagIsSet) {
  for (const std::size_t chunk_elements : {7, 4000}) {
    const ChunkRange range = {3 * chunk_elements - 3, chunk_elements, 0, 3};
    const Slots slots = MakeSlots(3, Sent::kAll, random_);
    Elements grads = RandomElements(DType::kFloat32, range.elements);
    Elements residual(DType::kFloat32, range.elements);
    for (std::size_t i = 0; i < range.elements; ++i) residual.Set(i, -0.0);
    const Elements before = residual;
    for (const std::uint32_t value : {0U, 1U}) {
      const Records<std::uint32_t> flag(1, value);
      ASSERT_EQ(Launch(&ChunkKernelTable::chunk_restore,
                       {.range = range,
                        .slots = slots.data(),
                        .grads = grads.data(),
                        .type = grads.type(),
                        .residual = static_cast<float*>(residual.data()),
                        .scale = 1,
                        .only_if = flag.data()}),
                0);
      EXPECT_TRUE(Matches(residual, value == 0 ? before : grads));
    }
  }
}

TEST_P(ChunkRestore, HidesTheTensorsOfTheRangeAndNoPadding) {
  for (const DType type : kGradientTypes) {
    for (const bool aligned : {false, true}) {
      aligned_ = aligned;
      for (const ChunkRange& range : aligned ? RangesOfRows() : Ranges()) {
        for (const Sent sent : {Sent::kNone, Sent::kSome}) {
          ASSERT_NO_FATAL_FAILURE(ExpectHidden(range, type, sent));
        }
      }
    }
  }
}

TEST_P(ChunkRestore, CannotHideWhatIsKeptInTheGradients) {
  Elements grads = RandomElements(DType::kFloat32, 20);
  const Elements before = grads;
  const Slots slots = MakeSlots(3, Sent::kAll, random_);
  const Records<TensorRun> tensors(1, {0, 20});
  EXPECT_EQ(Launch(&ChunkKernelTable::chunk_restore, {.range = {20, 7, 0, 3},
                                                      .slots = slots.data(),
                                                      .grads = grads.data(),
                                                      .type = grads.type(),
                                                      .residual = nullptr,
                                                      .scale = 1,
                                                      .hidden = tensors.data(),
                                                      .hidden_count = 1}),
            EINVAL);
  EXPECT_TRUE(Matches(grads, before));
}

TEST_P(ChunkRestore, HandlesChunksOfEveryLength) {
  for (std::size_t n = 1; n < 140; ++n) {
    ExpectOracle({3 * n - n / 2, n, 0, 3}, DType::kFloat16, Sent::kSome, 8);
  }
}

TEST_P(ChunkRestore, RefusesOtherTypesAndRangesAndTouchesNothing) {
  const Slots slots = MakeSlots(3, Sent::kAll, random_);
  Elements residual = RandomElements(DType::kFloat32, 20);
  const Elements before = residual;
  for (const DType type : kPlainTypes) {
    Elements grads(type, 20);
    EXPECT_EQ(Run({20, 7, 0, 3}, slots, grads, residual, 1), EINVAL);
  }
  Elements grads = RandomElements(DType::kFloat16, 20);
  for (const ChunkRange& bad : BadRanges()) {
    EXPECT_EQ(Run(bad, slots, grads, residual, 1), EINVAL);
  }
  EXPECT_TRUE(Matches(residual, before));
}

class ChunkRescale : public EveryChunkTable {
 protected:
  int Run(const ChunkRange& range, Elements& residual, float factor) {
    return Launch(&ChunkKernelTable::chunk_rescale,
                  {.range = range,
                   .residual = static_cast<float*>(residual.data()),
                   .factor = factor});
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkRescale);

TEST_P(ChunkRescale, MultipliesTheRangeAndNothingElse) {
  for (const ChunkRange& range : Ranges()) {
    for (const float factor : {0.0F, 1.0F, 0.5F, 1.0F / 3, -3e30F}) {
      Elements residual = RandomElements(DType::kFloat32, range.elements);
      Spoil(residual, random_);
      Elements expected = residual;
      for (std::size_t i = 0; i < range.elements; ++i) {
        if (!InRange(range, i / range.chunk_elements)) continue;
        expected.Set(i, double{factor} * residual.Get(i));
      }
      ASSERT_EQ(Run(range, residual, factor), 0);
      ASSERT_TRUE(Matches(residual, expected)) << factor;
    }
  }
}

TEST_P(ChunkRescale, MultipliesAResidualInTheGradients) {
  for (const DType type : kGradientTypes) {
    for (const ChunkRange& range : Ranges()) {
      for (const float factor : {1.0F, 0.5F, 1.0F / 3}) {
        Elements grads = RandomElements(type, range.elements);
        Spoil(grads, random_);
        Elements expected = grads;
        for (std::size_t i = 0; i < range.elements && factor != 1; ++i) {
          if (!InRange(range, i / range.chunk_elements)) continue;
          expected.Set(i,
                       RoundTo(DType::kFloat32, double{factor} * grads.Get(i)));
        }
        ASSERT_EQ(
            Launch(&ChunkKernelTable::chunk_rescale, {.range = range,
                                                      .residual = nullptr,
                                                      .factor = factor,
                                                      .grads = grads.data(),
                                                      .type = type}),
            0);
        ASSERT_TRUE(Matches(grads, expected)) << factor;
      }
    }
  }
}

TEST_P(ChunkRescale, RefusesRangesThatThePoolLacks) {
  Elements residual = RandomElements(DType::kFloat32, 20);
  const Elements before = residual;
  for (const ChunkRange& bad : BadRanges()) {
    EXPECT_EQ(Run(bad, residual, 2), EINVAL);
  }
  EXPECT_TRUE(Matches(residual, before));
}

}  // namespace
}  // namespace gradientflow::kernels::testing
