#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

// What only a table that may read memory before it starts can notice.
namespace gradientflow::kernels::testing {
namespace {

TEST(CpuChunkKernels, LeaveNoKernelOut) {
  const ChunkKernelTable& table = CpuChunkKernels();
  EXPECT_STREQ(table.name, "cpu");
  EXPECT_EQ(&table, &CpuChunkKernels());
  EXPECT_NE(table.chunk_residual, nullptr);
  EXPECT_NE(table.chunk_unpack, nullptr);
  EXPECT_NE(table.chunk_restore, nullptr);
  EXPECT_NE(table.chunk_rescale, nullptr);
  EXPECT_NE(table.top_k, nullptr);
  EXPECT_NE(table.tile_squares, nullptr);
  EXPECT_NE(table.lars_rates, nullptr);
  EXPECT_NE(table.tile_sgd, nullptr);
}

TEST(CpuChunkKernels, RefuseASlotBeforeThePackedBuffer) {
  Slots slots(3);
  for (std::size_t c = 0; c < 3; ++c) slots[c] = static_cast<std::uint32_t>(c);
  Elements grads(DType::kFloat32, 30);
  Elements residual(DType::kFloat32, 30);
  Elements packed(DType::kFloat32, 20);
  Elements norms(DType::kFloat32, 3);
  std::mt19937_64 random(3);
  for (Elements* elements : {&grads, &residual, &packed, &norms}) {
    elements->Fill(random);
  }
  const Elements before[] = {grads, residual, packed, norms};
  EXPECT_EQ(CpuChunkKernels().chunk_residual(
                {.range = {30, 10, 0, 3},
                 .slots = slots.data(),
                 .grads = grads.data(),
                 .type = DType::kFloat32,
                 .residual = static_cast<float*>(residual.data()),
                 .packed = packed.data(),
                 .packed_type = DType::kFloat32,
                 .first_slot = 1,
                 .scale = 1,
                 .zero_kept = false,
                 .keep_factor = 1,
                 .norm_scale = 1,
                 .norms = static_cast<float*>(norms.data())},
                nullptr),
            EINVAL);
  EXPECT_EQ(CpuChunkKernels().chunk_unpack(
                {.range = {30, 10, 0, 3},
                 .slots = slots.data(),
                 .grads = grads.data(),
                 .type = DType::kFloat32,
                 .packed = packed.data(),
                 .packed_type = DType::kFloat32,
                 .first_slot = 1,
                 .norm_scale = 1,
                 .norms = static_cast<float*>(norms.data()),
                 .nonfinite = nullptr},
                nullptr),
            EINVAL);
  EXPECT_TRUE(Matches(grads, before[0]));
  EXPECT_TRUE(Matches(residual, before[1]));
  EXPECT_TRUE(Matches(packed, before[2]));
  EXPECT_TRUE(Matches(norms, before[3]));
}

TEST(CpuChunkKernels, RefuseToSelectFewerChunksThanAreAlwaysSent) {
  const Records<float> norms(4, 1.5F);
  const Records<std::uint8_t> always(4, 1);
  Slots slots(4, 99);
  Records<std::uint8_t> selected(4, 99);
  Records<std::uint64_t> workspace((TopKWorkspaceBytes(4) + 7) / 8);
  EXPECT_EQ(CpuChunkKernels().top_k({.norms = norms.data(),
                                     .always = always.data(),
                                     .chunks = 4,
                                     .k = 3,
                                     .slots = slots.data(),
                                     .selected = selected.data(),
                                     .workspace = workspace.data(),
                                     .nonfinite = nullptr},
                                    nullptr),
            EINVAL);
  EXPECT_EQ(slots[0], 99U);
  EXPECT_EQ(int{selected[0]}, 99);
}

// One chunk of `n` elements, and whether it is sent.
struct Chunk {
  Chunk(DType type, std::size_t n, bool sent, std::mt19937_64& random)
      : grads(type, n), residual(DType::kFloat32, n), slots(1) {
    slots[0] = sent ? 0 : kNotSent;
    grads.Fill(random);
    residual.Fill(random);
  }
  void Clean() {
    for (std::size_t i = 0; i < residual.size(); ++i) residual.Set(i, 0);
    dirty = 0;
  }
  int Pass(void* packed = nullptr) {
    return CpuChunkKernels().chunk_residual(
        {.range = {grads.size(), grads.size(), 0, 1},
         .slots = slots.data(),
         .grads = grads.data(),
         .type = grads.type(),
         .residual = static_cast<float*>(residual.data()),
         .packed = packed,
         .packed_type = DType::kFloat16,
         .first_slot = 0,
         .scale = 1,
         .zero_kept = false,
         .keep_factor = 0.5F,
         .norm_scale = 1,
         .norms = &norm,
         .dirty = &dirty},
        nullptr);
  }

  Elements grads;
  Elements residual;
  Slots slots;
  float norm = 0;
  std::uint8_t dirty = 1;
};

TEST(CpuChunkKernels, SendFromTheGradientsWhereNothingIsPacked) {
  std::mt19937_64 random(5);
  for (const DType type : kGradientTypes) {
    Chunk chunk(type, 1001, true, random);
    const Chunk before = chunk;
    ASSERT_EQ(chunk.Pass(), 0);
    double norm = 0;
    for (std::size_t i = 0; i < 1001; ++i) {
      const double sum = RoundTo(DType::kFloat32,
                                 before.grads.Get(i) + before.residual.Get(i));
      const double sent = RoundTo(type, sum);
      ASSERT_TRUE(Is(chunk.grads, i, sent));
      ASSERT_TRUE(Is(chunk.residual, i, std::isfinite(sent) ? sum - sent : 0));
      norm += std::fabs(sent);
    }
    EXPECT_EQ(chunk.dirty, type == DType::kFloat32 ? 0 : 1);
    EXPECT_EQ(CpuChunkKernels().chunk_unpack({.range = {1001, 1001, 0, 1},
                                              .slots = chunk.slots.data(),
                                              .grads = chunk.grads.data(),
                                              .type = type,
                                              .packed = nullptr,
                                              .packed_type = DType::kFloat32,
                                              .first_slot = 0,
                                              .norm_scale = 0.25F,
                                              .norms = &chunk.norm,
                                              .nonfinite = nullptr},
                                             nullptr),
              0);
    EXPECT_TRUE(NormIs(chunk.norm, norm, 0.25F, 1001));
  }
}

TEST(CpuChunkKernels, SkipResidualsThatAreKnownToBeZero) {
  std::mt19937_64 random(6);
  for (const DType type : kGradientTypes) {
    Chunk chunk(type, 333, true, random);
    Chunk all = chunk;
    chunk.Clean();
    const Chunk before = chunk;
    ASSERT_EQ(chunk.Pass(), 0);  // In place: nothing is added.
    EXPECT_TRUE(chunk.grads.SameBits(before.grads));
    EXPECT_EQ(chunk.dirty, 0);
    // Packed: the same as adding zeros, except for the sign of a zero.
    all.Clean();
    all.dirty = 1;
    Elements packed(DType::kFloat16, 333);
    Elements expected(DType::kFloat16, 333);
    ASSERT_EQ(chunk.Pass(packed.data()), 0);
    ASSERT_EQ(all.Pass(expected.data()), 0);
    for (std::size_t i = 0; i < 333; ++i) {
      ASSERT_EQ(packed.Get(i), expected.Get(i));
      ASSERT_EQ(chunk.residual.Get(i), all.residual.Get(i));
    }
    EXPECT_EQ(chunk.dirty, all.dirty);
  }
}

// A residual in the gradients, through a step: what is kept, what a skipped
// step gives back, and a new scale.
TEST(CpuChunkKernels, LeaveAResidualInTheGradients) {
  std::mt19937_64 random(8);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType type : kGradientTypes) {
    for (const float keep : {1.0F, 0.5F}) {
      for (const bool sent : {false, true}) {
        Chunk chunk(type, 2001, sent, random);
        chunk.grads.Set(7, infinity);
        chunk.grads.Set(2000, 8);
        const Elements before = chunk.grads;
        const ChunkRange all = {2001, 2001, 0, 1};
        ChunkResidualArgs args = {};
        args.range = all;
        args.slots = chunk.slots.data();
        args.grads = chunk.grads.data();
        args.type = args.packed_type = type;
        args.keep_factor = keep;
        args.norm_scale = 1;
        args.norms = &chunk.norm;
        args.dirty = &chunk.dirty;
        ASSERT_EQ(CpuChunkKernels().chunk_residual(args, nullptr), 0);
        EXPECT_EQ(chunk.dirty, sent ? 0 : 1);
        EXPECT_EQ(std::isinf(chunk.norm), !sent);
        const double factor = sent ? 1 : double{keep};
        for (std::size_t i = 0; i < 2001; ++i) {
          const double kept = RoundTo(DType::kFloat32, factor * before.Get(i));
          ASSERT_TRUE(Is(chunk.grads, i, RoundTo(type, kept))) << i;
        }
        ASSERT_EQ(CpuChunkKernels().chunk_restore(
                      {all, chunk.slots.data(), chunk.grads.data(), type,
                       nullptr, 2.0F, &chunk.dirty},
                      nullptr),
                  0);
        EXPECT_EQ(chunk.dirty, 1);
        EXPECT_EQ(chunk.grads.Get(7), 0) << "not finite";
        const double back = sent ? 16 : 8 * factor;
        EXPECT_EQ(chunk.grads.Get(2000), back);
        ASSERT_EQ(
            CpuChunkKernels().chunk_rescale(
                {all, nullptr, 0.25F, &chunk.dirty, chunk.grads.data(), type},
                nullptr),
            0);
        EXPECT_EQ(chunk.grads.Get(2000), back / 4);
        args.zero_kept = true;
        EXPECT_EQ(CpuChunkKernels().chunk_residual(args, nullptr), EINVAL);
      }
    }
  }
}

TEST(CpuChunkKernels, KeepTrackOfResidualsThatAreZero) {
  std::mt19937_64 random(7);
  Chunk chunk(DType::kFloat32, 100, false, random);
  chunk.Clean();
  ASSERT_EQ(chunk.Pass(), 0);
  EXPECT_EQ(chunk.dirty, 1) << "gradients were kept back";
  chunk.Clean();
  for (std::size_t i = 0; i < 100; ++i) chunk.grads.Set(i, 0);
  ASSERT_EQ(chunk.Pass(), 0);
  EXPECT_EQ(chunk.dirty, 0) << "only zeros were kept back";
  const auto rescale = [&](float* residual) {
    return CpuChunkKernels().chunk_rescale(
        {{100, 100, 0, 1}, residual, 2.0F, &chunk.dirty}, nullptr);
  };
  EXPECT_EQ(rescale(nullptr), 0) << "zeros need no factor";
  chunk.slots[0] = 0;
  chunk.grads.Set(3, 1.5);
  auto* residual = static_cast<float*>(chunk.residual.data());
  EXPECT_EQ(CpuChunkKernels().chunk_restore({{100, 100, 0, 1},
                                             chunk.slots.data(),
                                             chunk.grads.data(),
                                             DType::kFloat32,
                                             residual,
                                             2.0F,
                                             &chunk.dirty},
                                            nullptr),
            0);
  EXPECT_EQ(chunk.dirty, 1) << "what was sent came back";
  EXPECT_EQ(rescale(residual), 0);
  EXPECT_EQ(chunk.residual.Get(3), 6.0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
