#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

// What a table sees only if it may look at memory before it starts.
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

}  // namespace
}  // namespace gradientflow::kernels::testing
