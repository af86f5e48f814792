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

struct How {
  float lr = 0.1F;
  float momentum = 0.9F;
  float weight_decay = 1e-4F;
  bool nesterov = false;
  float grad_scale = 1;
};

double Round(double value) { return RoundTo(DType::kFloat32, value); }

class TileSgd : public EveryChunkTable {
 protected:
  struct State {
    Weights weights;
    Elements momentum_buf;
    Elements grads;
  };
  // Each may be null.
  struct Options {
    const Slots* slots = nullptr;
    const Records<float>* rates = nullptr;
    const Records<std::uint32_t>* skip = nullptr;
  };

  State Make(const TileTable& table, DType type) {
    return {Weights(table.tensors, random_),
            RandomElements(DType::kFloat32, table.pool_elements),
            RandomElements(type, table.pool_elements)};
  }

  Records<float> RandomRates(std::size_t tensors) {
    Records<float> rates(tensors);
    for (std::size_t t = 0; t < tensors; ++t) {
      rates[t] = static_cast<float>(random_() % 1000) * 1e-3F;
    }
    return rates;
  }

  template <class T>
  static const T* DataOf(const Records<T>* records) {
    return records == nullptr ? nullptr : records->data();
  }

  int Run(const TileTable& table, State& state, How how, Options options) {
    return Launch(
        &ChunkKernelTable::tile_sgd,
        {.tiles = table.tiles.data(),
         .count = table.tiles.size(),
         .slots = DataOf(options.slots),
         .weights = state.weights.pointers(),
         .momentum_buf = static_cast<float*>(state.momentum_buf.data()),
         .grads = state.grads.data(),
         .type = state.grads.type(),
         .rates = DataOf(options.rates),
         .lr = how.lr,
         .momentum = how.momentum,
         .weight_decay = how.weight_decay,
         .nesterov = how.nesterov,
         .skip = DataOf(options.skip),
         .grad_scale = how.grad_scale});
  }

  // Every product and every sum of the header's formulas is rounded to float32.
  static void Update(State& state, const Tile& tile, double lr, How how) {
    for (std::size_t i = 0; i < tile.count; ++i) {
      const std::size_t at = tile.pool_begin + i;
      Elements& weights = state.weights[tile.tensor];
      const double w = weights.Get(tile.tensor_begin + i);
      const double m = double{how.momentum};
      const double g =
          Round(Round(double{how.grad_scale} * state.grads.Get(at)) +
                Round(double{how.weight_decay} * w));
      const double step = Round(lr * g);
      const double buf = Round(Round(m * state.momentum_buf.Get(at)) + step);
      const double change = how.nesterov ? Round(Round(m * buf) + step) : buf;
      state.momentum_buf.Set(at, buf);
      weights.Set(tile.tensor_begin + i, Round(w - change));
    }
  }

  static void ExpectSame(const State& seen, const State& expected) {
    ASSERT_TRUE(seen.weights.Match(expected.weights));
    ASSERT_TRUE(Matches(seen.momentum_buf, expected.momentum_buf));
    ASSERT_TRUE(Matches(seen.grads, expected.grads));
  }

  void ExpectOracle(const TileTable& table, DType type, How how,
                    Options options) {
    State state = Make(table, type);
    State expected = state;
    for (std::size_t t = 0; t < table.tiles.size(); ++t) {
      const Tile& tile = table.tiles[t];
      const bool sent =
          options.slots == nullptr || (*options.slots)[tile.chunk] != kNotSent;
      const float lr =
          options.rates == nullptr ? how.lr : (*options.rates)[tile.tensor];
      if (sent) Update(expected, tile, double{lr}, how);
    }
    ASSERT_EQ(Run(table, state, how, options), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(state, expected));
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(TileSgd);

TEST_P(TileSgd, UpdatesWhatWasSentBitForBitAndNothingElse) {
  const How hows[] = {{},
                      {0.03F, 0.875F, 0, true, 0.3F},
                      {0.5F, 0, 0.3F, false},
                      {1.0F / 3, 0.99F, 1e-2F, true}};
  int round = 0;
  for (const DType type : kGradientTypes) {
    for (const TileTable& table : TileTables()) {
      const Records<float> rates = RandomRates(table.tensors.size());
      for (const Sent sent : kSents) {
        const Slots slots = MakeSlots(table.chunks, sent, random_);
        const Options options{&slots, round % 2 == 0 ? &rates : nullptr};
        ASSERT_NO_FATAL_FAILURE(
            ExpectOracle(table, type, hows[round++ % 4], options));
      }
      ASSERT_NO_FATAL_FAILURE(
          ExpectOracle(table, type, hows[round++ % 4], {nullptr, &rates}));
    }
  }
}

TEST_P(TileSgd, HandlesTilesOfEveryLength) {
  std::vector<std::size_t> tensors;
  for (std::size_t n = 0; n < 140; ++n) tensors.push_back(n);
  const TileTable table = MakeTiles(tensors, 1000);
  const Slots slots = MakeSlots(table.chunks, Sent::kSome, random_);
  for (const DType type : kGradientTypes)
    ExpectOracle(table, type, {}, {&slots});
}

TEST_P(TileSgd, LeavesAllBitsWhereTheStepIsSkipped) {
  const TileTable table = MakeTiles({3, 40000, 0, 1, 777}, 1000);
  const Slots slots = MakeSlots(table.chunks, Sent::kSome, random_);
  const Records<float> rates = RandomRates(table.tensors.size());
  for (const DType type : kGradientTypes) {
    for (const std::uint32_t value : {1U, 2U, 0x80000000U}) {
      const Records<std::uint32_t> skip(1, value);
      State state = Make(table, type);
      const State before = state;
      ASSERT_EQ(Run(table, state, {}, {&slots, &rates, &skip}), 0);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(state, before));
    }
    const Records<std::uint32_t> go(1, 0);
    ExpectOracle(table, type, {}, {&slots, &rates, &go});
  }
}

TEST_P(TileSgd, RefusesOtherTypesAndTouchesNothing) {
  const TileTable table = MakeTiles({5, 9}, 7);
  for (const DType type : kPlainTypes) {
    State state = Make(table, type);
    const State before = state;
    EXPECT_EQ(Run(table, state, {}, {}), EINVAL);
    ExpectSame(state, before);
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
