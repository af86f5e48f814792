#include "gradientflow/core/loss_scaler.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace gradientflow {
namespace {

LossScaler Make(const LossScalerConfig& config = {}) {
  return LossScaler::Create(config).value();
}

TEST(LossScaler, StartsAtItsInitialScale) {
  EXPECT_EQ(Make().scale(), 65536.0F);
}

TEST(LossScaler, DoublesAfterEnoughGoodStepsInARow) {
  LossScaler scaler = Make();
  for (int i = 0; i < 1999; ++i) ASSERT_FALSE(scaler.Update(false));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 131072.0F);
  EXPECT_EQ(scaler.state().good_steps, 0U);
}

TEST(LossScaler, HalvesOnOverflowAndStartsCountingAgain) {
  LossScaler scaler = Make();
  for (int i = 0; i < 1999; ++i) ASSERT_FALSE(scaler.Update(false));
  EXPECT_TRUE(scaler.Update(true));
  EXPECT_EQ(scaler.scale(), 32768.0F);
  for (int i = 0; i < 1999; ++i) ASSERT_FALSE(scaler.Update(false));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 65536.0F);
}

TEST(LossScaler, StaysWithinItsBounds) {
  LossScaler scaler =
      Make({.initial = 8, .growth_steps = 1, .min = 3, .max = 20});
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 20.0F);
  EXPECT_FALSE(scaler.Update(false));
  for (int i = 0; i < 9; ++i) (void)scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 3.0F);
  EXPECT_FALSE(scaler.Update(true));
}

TEST(LossScaler, GoesOnFromARestoredStateAsIfNeverInterrupted) {
  std::mt19937 random(2);
  LossScaler scaler = Make({.growth_steps = 7});
  for (int i = 0; i < 100; ++i) (void)scaler.Update(random() % 11 == 0);
  LossScaler restored = Make({.growth_steps = 7});
  ASSERT_TRUE(restored.Restore(scaler.state()).ok());
  for (int i = 0; i < 100; ++i) {
    const bool nonfinite = random() % 11 == 0;
    ASSERT_EQ(scaler.Update(nonfinite), restored.Update(nonfinite));
    ASSERT_EQ(scaler.state(), restored.state());
  }
}

TEST(LossScaler, RefusesAStateOutOfBounds) {
  LossScaler scaler = Make();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const LossScaler::State& state :
       {LossScaler::State{0.5F, 0}, {1e30F, 0}, {nan, 0}, {8.0F, 2000}}) {
    EXPECT_EQ(scaler.Restore(state).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(scaler.scale(), 65536.0F);
  }
}

TEST(LossScaler, RefusesSettingsThatMakeNoSense) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const LossScalerConfig& config : {LossScalerConfig{.initial = 0.5F},
                                         {.initial = inf},
                                         {.growth = 0.5F},
                                         {.growth = inf},
                                         {.backoff = 0},
                                         {.backoff = 2},
                                         {.growth_steps = 0},
                                         {.min = 0},
                                         {.min = 8, .max = 4},
                                         {.max = inf}}) {
    EXPECT_EQ(LossScaler::Create(config).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gradientflow
