#include <gtest/gtest.h>

#include <cmath>
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
  float eta = 0.001F;
  float eps = 1e-8F;
  float weight_decay = 5e-4F;
  float grad_scale = 1;
};

struct Sums {
  Records<std::uint64_t> first_tile;
  Records<double> weights;
  Records<double> gradients;
  Records<std::uint8_t> skip;

  std::size_t tensors() const { return skip.size(); }
};

// Every operation is rounded to float64 by itself.
double Oracle(const Sums& sums, std::size_t tensor, How how) {
  double weight_sum = 0;
  double gradient_sum = 0;
  for (std::size_t t = sums.first_tile[tensor]; t < sums.first_tile[tensor + 1];
       ++t) {
    weight_sum += sums.weights[t];
    gradient_sum += sums.gradients[t];
  }
  if (weight_sum == 0 || gradient_sum == 0 || sums.skip[tensor] != 0) {
    return how.lr;
  }
  const double weight_norm = std::sqrt(weight_sum);
  const double above = double{how.eta} * weight_norm;
  const double decay = double{how.weight_decay} * weight_norm;
  const double norm = double{how.grad_scale} * std::sqrt(gradient_sum);
  const double norms = norm + decay;
  const double below = norms + double{how.eps};
  const double factor = RoundTo(DType::kFloat32, above / below);
  return RoundTo(DType::kFloat32, double{how.lr} * factor);
}

class TileRates : public EveryChunkTable {
 protected:
  // Sums for `tensors` tensors with up to `most` tiles each. Some tensors have
  // no tiles, and some have weights or gradients that are all zero.
  Sums MakeSums(std::size_t tensors, std::size_t most) {
    Records<std::uint64_t> first_tile(tensors + 1);
    for (std::size_t t = 0; t < tensors; ++t) {
      first_tile[t + 1] = first_tile[t] + random_() % (most + 1);
    }
    const std::size_t tiles = first_tile[tensors];
    Sums sums{first_tile, Records<double>(tiles), Records<double>(tiles),
              Records<std::uint8_t>(tensors)};
    std::uniform_real_distribution<double> uniform(0, 100);
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
      const bool weightless = random_() % 8 == 0;
      const bool gradientless = random_() % 8 == 0;
      sums.skip[tensor] = random_() % 4 == 0 ? 200 : 0;
      for (std::size_t t = first_tile[tensor]; t < first_tile[tensor + 1];
           ++t) {
        if (!weightless) sums.weights[t] = uniform(random_);
        const bool kept = random_() % 3 != 0;
        if (!gradientless && !kept) sums.gradients[t] = uniform(random_) * 1e3;
      }
    }
    return sums;
  }

  int Run(const Sums& sums, How how, Records<float>& rates, bool skip = true) {
    return Launch(&ChunkKernelTable::lars_rates,
                  {.first_tile = sums.first_tile.data(),
                   .tensors = sums.tensors(),
                   .weight_squares = sums.weights.data(),
                   .gradient_squares = sums.gradients.data(),
                   .skip = skip ? sums.skip.data() : nullptr,
                   .lr = how.lr,
                   .eta = how.eta,
                   .eps = how.eps,
                   .weight_decay = how.weight_decay,
                   .rates = rates.data(),
                   .grad_scale = how.grad_scale});
  }

  void ExpectOracle(const Sums& sums, How how) {
    Records<float> rates(sums.tensors(), -1.0F);
    ASSERT_EQ(Run(sums, how, rates), 0);
    for (std::size_t t = 0; t < sums.tensors(); ++t) {
      ASSERT_EQ(double{rates[t]}, Oracle(sums, t, how)) << "tensor " << t;
    }
    ASSERT_TRUE(rates.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(TileRates);

TEST_P(TileRates, FollowTheFormulaBitForBit) {
  const How hows[] = {{}, {0.03F, 1, 0, 0}, {3.7F, 0.02F, 1e-3F, 0.3F, 0.01F}};
  for (const std::size_t tensors : {0, 1, 2, 31, 33, 161, 257, 1025}) {
    for (const std::size_t most : {1, 5, 300}) {
      for (const How how : hows) {
        const Sums sums = MakeSums(tensors, most);
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(sums, how)) << tensors;
      }
    }
  }
}

// Not squares, but terms that would cancel differently in another order.
TEST_P(TileRates, AddTheTilesInOrder) {
  const double terms[] = {0x1p60, 3, -0x1p60, 4};
  for (const std::size_t tiles : {4, 64, 1000, 2000}) {
    Sums sums{Records<std::uint64_t>(2), Records<double>(tiles),
              Records<double>(tiles), Records<std::uint8_t>(1)};
    sums.first_tile[1] = tiles;
    for (std::size_t t = 0; t < tiles; ++t) {
      sums.weights[t] = terms[t % 4];
      sums.gradients[t] = t % 4 == 3 ? 9 : terms[t % 4];
    }
    const How how{1, 1, 0, 0};
    // Each group of terms first absorbs the value before it.
    ASSERT_EQ(Oracle(sums, 0, how), RoundTo(DType::kFloat32, 2.0 / 3));
    ExpectOracle(sums, how);
  }
}

// Tensors that a block reads in several rounds, and between them tensors
// without tiles.
TEST_P(TileRates, AddTensorsOfManyTilesAndOfNoneBetweenThem) {
  for (const int round : {0, 1, 2}) {
    constexpr std::size_t kTensors = 120;
    Records<std::uint64_t> first_tile(kTensors + 1);
    for (std::size_t t = 0; t < kTensors; ++t) {
      const bool many = (random_() & 1) == 0;
      first_tile[t + 1] = first_tile[t] + (many ? 1024 + random_() % 2500 : 0);
    }
    const std::size_t tiles = first_tile[kTensors];
    Sums sums{first_tile, Records<double>(tiles), Records<double>(tiles),
              Records<std::uint8_t>(kTensors)};
    std::uniform_real_distribution<double> uniform(0, 100);
    for (std::size_t t = 0; t < tiles; ++t) {
      sums.weights[t] = uniform(random_);
      sums.gradients[t] = uniform(random_);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(sums, {})) << "round " << round;
  }
}

TEST_P(TileRates, AreThePlainRateWhereANormIsZeroOrTheTensorIsSkipped) {
  Sums sums{Records<std::uint64_t>(6), Records<double>(4, 4.0),
            Records<double>(4, 9.0), Records<std::uint8_t>(5)};
  const std::uint64_t first_tile[] = {0, 1, 2, 3, 4, 4};
  for (std::size_t t = 0; t < 6; ++t) sums.first_tile[t] = first_tile[t];
  sums.weights[0] = 0;
  sums.gradients[1] = 0;
  sums.skip[2] = 1;
  Records<float> rates(5, -1.0F);
  ASSERT_EQ(Run(sums, {0.25F, 0.5F, 0, 0}, rates), 0);
  for (const std::size_t t : {0, 1, 2, 4}) EXPECT_EQ(rates[t], 0.25F) << t;
  EXPECT_EQ(double{rates[3]},
            RoundTo(DType::kFloat32,
                    0.25 * RoundTo(DType::kFloat32, 0.5 * 2.0 / 3.0)));
}

TEST_P(TileRates, SkipNoTensorWithoutAList) {
  Sums sums = MakeSums(100, 3);
  Records<float> rates(100);
  ASSERT_EQ(Run(sums, {}, rates, false), 0);
  for (std::size_t t = 0; t < 100; ++t) sums.skip[t] = 0;
  for (std::size_t t = 0; t < 100; ++t) {
    EXPECT_EQ(double{rates[t]}, Oracle(sums, t, {})) << t;
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
