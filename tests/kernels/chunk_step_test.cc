#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

// All kernels of a step in sequence, on one rank: what is packed arrives
// unchanged.
class ChunkStep : public EveryChunkTable {
 protected:
  struct State {
    TileTable table;
    ChunkRange range;
    Weights weights;
    Elements momentum_buf;
    Elements residual;
  };

  State Make(const std::vector<std::size_t>& tensors,
             std::size_t chunk_elements) {
    TileTable table = MakeTiles(tensors, chunk_elements);
    const std::size_t elements = table.pool_elements;
    State state{table,
                {elements, chunk_elements, 0, table.chunks},
                Weights(tensors, random_),
                Elements(DType::kFloat32, elements),
                Elements(DType::kFloat32, elements)};
    for (std::size_t i = 0; i < elements; ++i) {
      state.momentum_buf.Set(i, 0);
      state.residual.Set(i, 0);
    }
    return state;
  }

  // `grads` becomes what arrived; `norms` become those of the step.
  void Exchange(State& state, const Slots& slots, Elements& grads,
                Elements& norms) {
    Elements packed(grads.type(), PackedElements(state.range, slots, 0));
    auto* residual = static_cast<float*>(state.residual.data());
    ASSERT_EQ(Launch(&ChunkKernelTable::chunk_residual,
                     {.range = state.range,
                      .slots = slots.data(),
                      .grads = grads.data(),
                      .type = grads.type(),
                      .residual = residual,
                      .packed = packed.data(),
                      .packed_type = packed.type(),
                      .first_slot = 0,
                      .scale = 1,
                      .zero_kept = true,
                      .keep_factor = 0.9F,
                      .norm_scale = 1,
                      .norms = static_cast<float*>(norms.data())}),
              0);
    ASSERT_EQ(Launch(&ChunkKernelTable::chunk_unpack,
                     {.range = state.range,
                      .slots = slots.data(),
                      .grads = grads.data(),
                      .type = grads.type(),
                      .packed = packed.data(),
                      .packed_type = packed.type(),
                      .first_slot = 0,
                      .norm_scale = 1,
                      .norms = static_cast<float*>(norms.data()),
                      .nonfinite = nullptr}),
              0);
  }

  void Update(State& state, const Slots& slots, const Elements& grads) {
    ASSERT_EQ(
        Launch(&ChunkKernelTable::tile_sgd,
               {.tiles = state.table.tiles.data(),
                .count = state.table.tiles.size(),
                .slots = slots.data(),
                .weights = state.weights.pointers(),
                .momentum_buf = static_cast<float*>(state.momentum_buf.data()),
                .grads = grads.data(),
                .type = grads.type(),
                .rates = nullptr,
                .lr = 0.1F,
                .momentum = 0.9F,
                .weight_decay = 0,
                .nesterov = false,
                .skip = nullptr}),
        0);
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkStep);

// Algorithm 1 with gradient 1 and momentum 0.9; sent at steps 3 and 5.
TEST_P(ChunkStep, FollowsTheGoldenHistoryOfTheMomentumCorrection) {
  State state = Make({5, 6}, 4);
  for (std::size_t i = 0; i < 5; ++i) state.weights[0].Set(i, 0);
  for (std::size_t i = 0; i < 6; ++i) state.weights[1].Set(i, 0);
  const Sent sent[] = {Sent::kNone, Sent::kNone, Sent::kAll, Sent::kNone,
                       Sent::kAll};
  const double kept[] = {0.9, 1.71, 0, 0.9, 0};
  const double arrived[] = {0, 0, 2.71, 0, 1.9};
  const double momentum[] = {0, 0, 0.271, 0.271, 0.4339};
  const double weight[] = {0, 0, -0.271, -0.271, -0.7049};
  for (int step = 0; step < 5; ++step) {
    const Slots slots = MakeSlots(3, sent[step], random_);
    Elements grads(DType::kFloat32, 11);
    Elements norms(DType::kFloat32, 3);
    for (std::size_t i = 0; i < 11; ++i) grads.Set(i, 1);
    ASSERT_NO_FATAL_FAILURE(Exchange(state, slots, grads, norms));
    ASSERT_NO_FATAL_FAILURE(Update(state, slots, grads));
    for (std::size_t i = 0; i < 11; ++i) {
      EXPECT_NEAR(state.residual.Get(i), kept[step], 1e-6);
      EXPECT_NEAR(grads.Get(i), arrived[step], 1e-6);
      EXPECT_NEAR(state.momentum_buf.Get(i), momentum[step], 1e-6);
      const double seen =
          i < 6 ? state.weights[1].Get(i) : state.weights[0].Get(i - 6);
      EXPECT_NEAR(seen, weight[step], 1e-6);
    }
  }
}

// The norms of a step choose the chunks of the next. After any number of steps,
// only the residual separates what was sent from what was produced.
TEST_P(ChunkStep, LosesNothingWhileNormsChooseTheChunks) {
  State state = Make({700, 3, 1290}, 100);
  const std::size_t elements = state.table.pool_elements;
  const std::size_t chunks = state.table.chunks;
  Slots slots = MakeSlots(chunks, Sent::kAll, random_);
  Elements norms(DType::kFloat32, chunks);
  Records<std::uint8_t> selected(chunks);
  Records<std::uint64_t> workspace((TopKWorkspaceBytes(chunks) + 7) / 8);
  std::vector<bool> ever(chunks);
  for (int step = 0; step < 40; ++step) {
    Elements grads = RandomElements(DType::kFloat32, elements);
    const Elements old_grads = grads;
    const Elements old_residual = state.residual;
    ASSERT_NO_FATAL_FAILURE(Exchange(state, slots, grads, norms));
    for (std::size_t i = 0; i < elements; ++i) {
      const double s =
          RoundTo(DType::kFloat32, old_grads.Get(i) + old_residual.Get(i));
      const bool sent = slots[i / 100] != kNotSent;
      ASSERT_TRUE(Is(grads, i, sent ? s : 0.0));
      ASSERT_TRUE(Is(state.residual, i,
                     sent ? 0.0 : RoundTo(DType::kFloat32, double{0.9F} * s)));
    }
    ASSERT_EQ(Launch(&ChunkKernelTable::top_k,
                     {.norms = static_cast<float*>(norms.data()),
                      .always = nullptr,
                      .chunks = chunks,
                      .k = 3,
                      .slots = slots.data(),
                      .selected = selected.data(),
                      .workspace = workspace.data(),
                      .nonfinite = nullptr}),
              0);
    for (std::size_t c = 0; c < chunks; ++c) {
      if (selected[c] != 0) ever[c] = true;
    }
  }
  // Kept gradients grow until they are sent.
  for (std::size_t c = 0; c < chunks; ++c) EXPECT_TRUE(ever[c]) << c;
}

}  // namespace
}  // namespace gradientflow::kernels::testing
