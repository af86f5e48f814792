#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/chunk_kernels.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

class TileSquares : public EveryChunkTable {
 protected:
  struct Sums {
    explicit Sums(std::size_t tiles)
        : weights(tiles, -3.0), gradients(tiles, -5.0) {}
    Records<double> weights;
    Records<double> gradients;
  };

  int Run(const TileTable& table, const Slots* slots, const Weights& weights,
          const Elements& grads, Sums& sums) {
    return Launch(&ChunkKernelTable::tile_squares,
                  {.tiles = table.tiles.data(),
                   .count = table.tiles.size(),
                   .slots = slots == nullptr ? nullptr : slots->data(),
                   .weights = weights.pointers(),
                   .grads = grads.data(),
                   .type = grads.type(),
                   .weight_squares = sums.weights.data(),
                   .gradient_squares = sums.gradients.data()});
  }

  void ExpectOracle(const TileTable& table, DType type, const Slots* slots) {
    const Weights weights(table.tensors, random_);
    const Elements grads = RandomElements(type, table.pool_elements);
    Sums sums(table.tiles.size());
    ASSERT_EQ(Run(table, slots, weights, grads, sums), 0);
    for (std::size_t t = 0; t < table.tiles.size(); ++t) {
      const Tile& tile = table.tiles[t];
      ASSERT_EQ(sums.weights[t], SquaresInOrder(weights[tile.tensor],
                                                tile.tensor_begin, tile.count));
      const bool sent = slots == nullptr || (*slots)[tile.chunk] != kNotSent;
      ASSERT_EQ(sums.gradients[t],
                sent ? SquaresInOrder(grads, tile.pool_begin, tile.count) : 0);
    }
    ASSERT_TRUE(sums.weights.CanariesIntact());
    ASSERT_TRUE(sums.gradients.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(TileSquares);

TEST_P(TileSquares, SumsWeightsAndSentGradientsTileByTile) {
  for (const DType type : kGradientTypes) {
    for (const TileTable& table : TileTables()) {
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(table, type, nullptr));
      for (const Sent sent : kSents) {
        const Slots slots = MakeSlots(table.chunks, sent, random_);
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(table, type, &slots));
      }
    }
  }
}

TEST_P(TileSquares, HandlesTilesOfEveryLength) {
  std::vector<std::size_t> tensors;
  for (std::size_t n = 0; n < 140; ++n) tensors.push_back(n);
  ExpectOracle(MakeTiles(tensors, 32000), DType::kBFloat16, nullptr);
}

TEST_P(TileSquares, CountsEveryElementOnceEvenWhereAFloat32WouldOverflow) {
  const TileTable table = MakeTiles({16384, 12345}, 1 << 20);
  Weights weights(table.tensors, random_);
  Elements grads(DType::kFloat32, table.pool_elements);
  for (std::size_t i = 0; i < grads.size(); ++i) grads.Set(i, -0x1p100);
  for (std::size_t i = 0; i < 16384; ++i) weights[0].Set(i, 0x1p-90);
  Sums sums(2);
  ASSERT_EQ(Run(table, nullptr, weights, grads, sums), 0);
  EXPECT_EQ(sums.weights[0], 16384 * 0x1p-180);
  EXPECT_EQ(sums.gradients[0], 16384 * 0x1p200);
  EXPECT_EQ(sums.gradients[1], 12345 * 0x1p200);
}

TEST_P(TileSquares, RefusesOtherTypesAndTouchesNothing) {
  const TileTable table = MakeTiles({5, 9}, 7);
  const Weights weights(table.tensors, random_);
  for (const DType type : kPlainTypes) {
    const Elements grads(type, table.pool_elements);
    Sums sums(table.tiles.size());
    EXPECT_EQ(Run(table, nullptr, weights, grads, sums), EINVAL);
    EXPECT_TRUE(sums.weights.SameBits(Sums(table.tiles.size()).weights));
    EXPECT_TRUE(sums.gradients.SameBits(Sums(table.tiles.size()).gradients));
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
