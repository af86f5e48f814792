#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

struct Rates {
  float lr = 0.1f;
  float momentum = 0.9f;
  float weight_decay = 0;
  float grad_scale = 1;
  bool nesterov = false;
};

class Sgd : public EveryCpuTable {
 protected:
  int Run(Elements& weights, Elements& momentum_buf, const Elements& grads,
          Rates with) {
    return kernels().sgd(
        {static_cast<float*>(weights.data()),
         static_cast<float*>(momentum_buf.data()), grads.data(), grads.type(),
         grads.size(), with.lr, with.momentum, with.weight_decay,
         with.grad_scale, with.nesterov},
        nullptr);
  }

  static double Round(double value) { return RoundTo(DType::kFloat32, value); }

  // Every product and every sum of the header's formulas is rounded to float32.
  void ExpectOracle(DType type, std::size_t n, Rates with) {
    Elements weights(DType::kFloat32, n, n % 3);
    Elements momentum_buf(DType::kFloat32, n, n % 4);
    Elements grads(type, n, n % 5);
    weights.Fill(random_);
    momentum_buf.Fill(random_);
    grads.Fill(random_);
    const Elements old_weights = weights;
    const Elements old_buf = momentum_buf;
    ASSERT_EQ(Run(weights, momentum_buf, grads, with), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const double w = old_weights.Get(i);
      const double g = Round(Round(double{with.grad_scale} * grads.Get(i)) +
                             Round(double{with.weight_decay} * w));
      const double step = Round(double{with.lr} * g);
      const double m = double{with.momentum};
      const double buf = Round(Round(m * old_buf.Get(i)) + step);
      const double change = with.nesterov ? Round(Round(m * buf) + step) : buf;
      ASSERT_TRUE(Is(momentum_buf, i, buf));
      ASSERT_TRUE(Is(weights, i, Round(w - change)));
    }
    ASSERT_TRUE(weights.CanariesIntact() && momentum_buf.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CPU_TABLE(Sgd);

TEST_P(Sgd, HandlesRunsOfManyBlocks) {
  for (const DType type : kGradientTypes) {
    ExpectOracle(type, 20011, {0.03f, 0.875f, 1e-4f, 1.0f / 3, true});
  }
}

TEST_P(Sgd, FollowsItsFormulasBitForBit) {
  for (const DType type : kGradientTypes) {
    for (const bool nesterov : {false, true}) {
      for (const std::size_t n : kSizes) {
        ExpectOracle(type, n, {0.1f, 0.9f, 0, 1, nesterov});
        ExpectOracle(type, n, {0.03f, 0.875f, 1e-4f, 1.0f / 3, nesterov});
      }
    }
  }
}

TEST_P(Sgd, HandlesEveryTailLength) {
  for (std::size_t n = 0; n < 140; ++n) ExpectOracle(DType::kFloat16, n, {});
}

// Algorithm 1, gradients sent at steps 3 and 5: 2.71 and 1.9.
TEST_P(Sgd, ReachesTheGoldenWeights) {
  Elements weights(DType::kFloat32, 5);
  Elements momentum_buf(DType::kFloat32, 5);
  Elements grads(DType::kFloat32, 5);
  for (std::size_t i = 0; i < 5; ++i) {
    weights.Set(i, 0);
    momentum_buf.Set(i, 0);
    grads.Set(i, 2.71);
  }
  ASSERT_EQ(Run(weights, momentum_buf, grads, {}), 0);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(momentum_buf.Get(i), 0.271, 1e-6);
    EXPECT_NEAR(weights.Get(i), -0.271, 1e-6);
    grads.Set(i, 1.9);
  }
  ASSERT_EQ(Run(weights, momentum_buf, grads, {}), 0);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(momentum_buf.Get(i), 0.4339, 1e-6);
    EXPECT_NEAR(weights.Get(i), -0.7049, 1e-6);
  }
}

TEST_P(Sgd, RefusesOtherTypes) {
  Elements weights(DType::kFloat32, 4);
  Elements momentum_buf(DType::kFloat32, 4);
  const Elements grads(DType::kInt8, 4);
  EXPECT_NE(Run(weights, momentum_buf, grads, {}), 0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
