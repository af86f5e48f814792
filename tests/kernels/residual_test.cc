#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/oracle.h"

namespace gradientflow::kernels::testing {
namespace {

struct How {
  bool send = false;
  bool zero_kept = false;
  float keep_factor = 1;
};

class Residual : public EveryCpuTable {
 protected:
  int Run(Elements& grads, Elements& residual, How how, float* norm = nullptr) {
    return kernels().residual(
        {grads.data(), grads.type(), static_cast<float*>(residual.data()),
         grads.size(), how.send, how.zero_kept, how.keep_factor, norm},
        nullptr);
  }

  void ExpectOracle(DType type, std::size_t n, How how) {
    Elements grads(type, n, n % 3);
    Elements residual(DType::kFloat32, n, n % 5);
    grads.Fill(random_);
    residual.Fill(random_);
    const Elements old_grads = grads;
    const Elements old_residual = residual;
    Scalar<float> norm(2.5f);
    ASSERT_EQ(Run(grads, residual, how, norm.get()), 0);
    double exact_norm = 2.5;
    for (std::size_t i = 0; i < n; ++i) {
      const double sum =
          RoundTo(DType::kFloat32, old_grads.Get(i) + old_residual.Get(i));
      exact_norm += std::fabs(sum);
      const double kept = RoundTo(DType::kFloat32, sum * how.keep_factor);
      const double grad_if_kept = how.zero_kept ? 0.0 : old_grads.Get(i);
      const double left = sum - RoundTo(type, sum);
      const double rest = std::isfinite(left) ? left : 0.0;
      ASSERT_TRUE(Is(residual, i, how.send ? rest : kept));
      ASSERT_TRUE(Is(grads, i, how.send ? RoundTo(type, sum) : grad_if_kept));
    }
    EXPECT_LE(FloatUlps(*norm, exact_norm), NormUlpBound(n)) << n;
    ASSERT_TRUE(grads.CanariesIntact() && residual.CanariesIntact());
  }
};

GRADIENTFLOW_FOR_EVERY_CPU_TABLE(Residual);

TEST_P(Residual, SendsTheSumAndKeepsWhatItsRoundingTook) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) ExpectOracle(type, n, {true});
  }
}

TEST_P(Residual, KeepsTheDecayedSumAndTheGradientAsItWas) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      ExpectOracle(type, n, {false, false, 0.9f});
    }
  }
}

TEST_P(Residual, ZeroesAKeptGradientWhereAsked) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      ExpectOracle(type, n, {false, true, 0.9f});
    }
  }
}

TEST_P(Residual, HandlesEveryTailLengthAndLongRuns) {
  for (std::size_t n = 0; n < 140; ++n) {
    ExpectOracle(DType::kFloat16, n, {n % 2 == 0, n % 3 == 0, 0.5f});
  }
  for (const std::size_t n : {8191, 8193, 32000, 100003}) {
    ExpectOracle(DType::kFloat32, n, {true});
    ExpectOracle(DType::kBFloat16, n, {false, true, 0.9f});
  }
}

TEST_P(Residual, DecaysAResidualThatIsInTheGradients) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : {0, 1, 15, 16, 70, 1000, 8193, 32001}) {
      Elements grads(type, n, n % 3);
      grads.Fill(random_);
      const Elements before = grads;
      Elements apart(DType::kFloat32, n);
      for (std::size_t i = 0; i < n; ++i) apart.Set(i, 0);
      Scalar<float> norm;
      Scalar<float> norm_apart;
      const ResidualArgs args = {grads.data(), type,  nullptr, n,
                                 false,        false, 0.9F,    norm.get()};
      ASSERT_EQ(kernels().residual(args, nullptr), 0);
      for (std::size_t i = 0; i < n; ++i) {
        const double kept =
            RoundTo(DType::kFloat32, before.Get(i) * double{0.9F});
        ASSERT_TRUE(Is(grads, i, RoundTo(type, kept)));
      }
      Elements as_before = before;
      ASSERT_EQ(Run(as_before, apart, {false, false, 0.9F}, norm_apart.get()),
                0);
      EXPECT_EQ(*norm, *norm_apart) << "the order of the sum is the same";
      EXPECT_TRUE(grads.CanariesIntact());
      for (const bool send : {false, true}) {
        ResidualArgs refused = args;
        refused.send = send;
        refused.zero_kept = !send;
        EXPECT_NE(kernels().residual(refused, nullptr), 0);
      }
    }
  }
}

// Each step adds much less than one unit in the last place of the sum.
TEST_P(Residual, LosesNothingOverHundredsOfSteps) {
  for (const DType type : kGradientTypes) {
    Elements residual(DType::kFloat32, 37);
    for (std::size_t i = 0; i < 37; ++i) residual.Set(i, 0);
    std::vector<double> made(37);
    std::vector<double> sent(37);
    for (int step = 0; step < 300; ++step) {
      Elements grads(type, 37);
      for (std::size_t i = 0; i < 37; ++i) {
        grads.Set(i, 1 + 0.01 * static_cast<double>((i + step) % 7));
        made[i] += grads.Get(i);
      }
      ASSERT_EQ(Run(grads, residual, {step % 3 == 2, true, 1}), 0);
      for (std::size_t i = 0; i < 37; ++i) sent[i] += grads.Get(i);
    }
    for (std::size_t i = 0; i < 37; ++i) {
      ASSERT_NEAR(sent[i] + residual.Get(i), made[i], 1e-4);
    }
  }
}

TEST_P(Residual, LeavesAFiniteRestOfWhatOverflows) {
  const double infinity = std::numeric_limits<double>::infinity();
  Elements grads(DType::kFloat16, 40);
  Elements residual(DType::kFloat32, 40);
  for (std::size_t i = 0; i < 40; ++i) {
    grads.Set(i, i % 3 == 0 ? infinity : 60000);
    residual.Set(i, i % 3 == 1 ? 60000 : std::nan(""));
  }
  ASSERT_EQ(Run(grads, residual, {true}), 0);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(residual.Get(i), 0) << i;
}

TEST_P(Residual, DoesWithoutANorm) {
  Elements grads(DType::kFloat16, 77);
  Elements residual(DType::kFloat32, 77);
  grads.Fill(random_);
  residual.Fill(random_);
  Elements grads_too = grads;
  Elements residual_too = residual;
  Scalar<float> norm;
  ASSERT_EQ(Run(grads, residual, {true}), 0);
  ASSERT_EQ(Run(grads_too, residual_too, {true}, norm.get()), 0);
  EXPECT_TRUE(grads.SameBits(grads_too));
  EXPECT_GT(*norm, 0);
}

// Algorithm 1 with gradient 1, momentum 0.9: residuals and sent values.
TEST_P(Residual, FollowsTheGoldenHistoryOfTheMomentumCorrection) {
  Elements residual(DType::kFloat32, 3);
  for (std::size_t i = 0; i < 3; ++i) residual.Set(i, 0);
  const bool send[] = {false, false, true, false, true};
  const double history[] = {0.9, 1.71, 0, 0.9, 0};
  const double sent[] = {0, 0, 2.71, 0, 1.9};
  for (int step = 0; step < 5; ++step) {
    Elements grads(DType::kFloat32, 3);
    for (std::size_t i = 0; i < 3; ++i) grads.Set(i, 1);
    ASSERT_EQ(Run(grads, residual, {send[step], true, 0.9f}), 0);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(residual.Get(i), history[step], 1e-6);
      EXPECT_NEAR(grads.Get(i), sent[step], 1e-6);
    }
  }
}

TEST_P(Residual, RepeatsItsNormBitForBitAtAnyAddress) {
  Elements grads(DType::kFloat32, 32000);
  Elements residual(DType::kFloat32, 32000);
  grads.Fill(random_);
  residual.Fill(random_);
  float first = 0;
  for (std::size_t shift = 0; shift < 16; ++shift) {
    Elements grads_too(DType::kFloat32, 32000, shift);
    Elements residual_too(DType::kFloat32, 32000, 15 - shift);
    for (std::size_t i = 0; i < 32000; ++i) {
      grads_too.SetBits(i, grads.Bits(i));
      residual_too.SetBits(i, residual.Bits(i));
    }
    Scalar<float> norm;
    ASSERT_EQ(Run(grads_too, residual_too, {true}, norm.get()), 0);
    if (shift == 0) first = *norm;
    EXPECT_EQ(*norm, first);
  }
}

TEST_P(Residual, RefusesOtherTypes) {
  Elements grads(DType::kFloat64, 4);
  Elements residual(DType::kFloat32, 4);
  EXPECT_NE(Run(grads, residual, {true}), 0);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
