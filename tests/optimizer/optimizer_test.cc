#include "gradientflow/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/buckets/pool_layout.h"
#include "kernels/kernels.h"
#include "tests/csc/gradients.h"
#include "tests/optimizer/sgd_oracle.h"

namespace gradientflow {
namespace {

using kernels::CpuKernelTable;
using testing::Bits;
using testing::RandomFloats;
using testing::SgdOracle;
using testing::ToFloats;
using testing::ToPool;
using testing::Weights;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

std::vector<const CpuKernelTable*> Tables() {
  std::vector<const CpuKernelTable*> tables;
  for (auto table = kernels::AllCpuKernels(); *table != nullptr; ++table) {
    tables.push_back(*table);
  }
  return tables;
}

struct Selection {
  std::vector<Extent> extents;
  std::vector<bool> sent;  // By element of the pool.
};

// Random chunks of a random size, so that they cross tensor borders.
Selection RandomSelection(std::size_t elements, std::mt19937& random) {
  const std::size_t chunk = 1 + random() % 40;
  std::vector<std::uint8_t> chunks((elements + chunk - 1) / chunk);
  for (std::uint8_t& one : chunks) one = random() % 2;
  Selection selection;
  selection.extents = ExtentsOf(PlanSparse({elements, chunk, chunks}, 64, 4));
  for (std::size_t i = 0; i < elements; ++i) {
    selection.sent.push_back(chunks[i / chunk] != 0);
  }
  return selection;
}

PoolLayout RandomLayout(std::mt19937& random) {
  std::vector<std::size_t> sizes(1 + random() % 7);
  for (std::size_t& size : sizes) size = random() % 5 == 0 ? 0 : random() % 99;
  return PoolLayout::Create(sizes, random() % 2 == 0 ? 1 : 8).value();
}

// The sum of what a buffer in the order of the pool holds in the padding.
float PaddingOf(const PoolLayout& layout, std::span<const float> values) {
  float sum = 0;
  for (std::size_t i = 0; i < layout.elements(); ++i) {
    if (layout.Parts({i, 1}).empty()) sum += std::fabs(values[i]);
  }
  return sum;
}

void ExpectNear(double seen, double expected) {
  EXPECT_NEAR(seen, expected, 2e-6 * (1 + std::fabs(expected)));
}

// Runs several steps with changing selections, from the same start.
void CompareWithOracle(const CpuKernelTable& table,
                       const OptimizerOptions& config, DType type,
                       std::uint32_t seed) {
  std::mt19937 random(seed);
  const PoolLayout layout = RandomLayout(random);
  Weights weights(layout, random);
  SgdOracle oracle(layout, weights);
  for (std::size_t i = 0; i < layout.tensors(); ++i) {
    oracle.skip_lars[i] = random() % 4 == 0;
  }
  Optimizer optimizer(layout, table, oracle.skip_lars);
  for (int step = 0; step < 4; ++step) {
    const auto pool = ToPool(RandomFloats(layout.elements(), random), type);
    const Selection selection = RandomSelection(layout.elements(), random);
    const Weights before = weights;
    const std::vector<float> momentum_before(optimizer.momentum().begin(),
                                             optimizer.momentum().end());
    ASSERT_TRUE(optimizer
                    .Update(config, {pool.data(), type, selection.extents},
                            weights.pointers())
                    .ok());
    oracle.Update(config, ToFloats(pool, type), selection.sent);
    ASSERT_EQ(optimizer.momentum().size(), layout.elements());
    EXPECT_EQ(PaddingOf(layout, optimizer.momentum()), 0.0F);
    for (std::size_t i = 0; i < layout.tensors(); ++i) {
      for (std::size_t e = 0; e < layout.tensor_elements(i); ++e) {
        const std::size_t at = layout.offset(i) + e;
        const float hu = optimizer.momentum()[at];
        if (!selection.sent[at]) {
          ASSERT_EQ(Bits(weights[i][e]), Bits(before[i][e]));
          ASSERT_EQ(Bits(hu),
                    momentum_before.empty() ? 0 : Bits(momentum_before[at]));
        }
        ExpectNear(weights[i][e], oracle.weights[i][e]);
        ExpectNear(hu, oracle.momentum[at]);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Optimizer, MatchesTheFloat64OracleAndLeavesUnsentElementsAlone) {
  const OptimizerOptions::Kind kinds[] = {OptimizerOptions::Kind::kSgd,
                                          OptimizerOptions::Kind::kLars};
  std::uint32_t seed = 0;
  for (const CpuKernelTable* table : Tables()) {
    for (DType type : kTypes) {
      for (int round = 0; round < 60; ++round) {
        const OptimizerOptions config{
            .kind = kinds[round % 2],
            .lr = 0.1F,
            .momentum = round % 5 == 0 ? 0.0F : 0.9F,
            .weight_decay = round % 3 == 0 ? 0.0F : 0.01F,
            .nesterov = round % 7 == 0,
            .lars_eta = 0.5F,
        };
        SCOPED_TRACE(::testing::Message()
                     << table->name << " " << Name(type) << " seed " << seed);
        CompareWithOracle(*table, config, type, seed++);
        if (HasFailure()) return;
      }
    }
  }
}

class OptimizerErrors : public ::testing::Test {
 protected:
  OptimizerErrors() : weights_(layout_, random_) {}

  Status Update(const OptimizerOptions& config) {
    return optimizer_.Update(config, gradients_, weights_.pointers());
  }
  static void ExpectInvalid(const Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos)
        << status.message();
  }

  std::mt19937 random_{1};
  const PoolLayout layout_ = PoolLayout::Create({4, 0, 3}).value();
  const std::vector<Extent> all_ = {{0, 7}};
  const std::vector<float> pool_ = std::vector<float>(7, 1.0F);
  ExchangedGradients gradients_{pool_.data(), DType::kFloat32, all_};
  Weights weights_;
  Optimizer optimizer_{layout_, kernels::CpuKernels()};
};

TEST_F(OptimizerErrors, NameTheFieldAndChangeNothing) {
  const Weights before = weights_;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectInvalid(Update({.lr = nan}), "lr");
  ExpectInvalid(Update({.momentum = 1.0F}), "momentum");
  ExpectInvalid(Update({.weight_decay = -1.0F}), "weight_decay");
  ExpectInvalid(Update({.lars_eta = nan}), "lars_eta");
  gradients_.type = DType::kInt32;
  ExpectInvalid(Update({}), "int32");
  EXPECT_TRUE(weights_ == before);
  EXPECT_TRUE(optimizer_.momentum().empty());
}

TEST_F(OptimizerErrors, NameTheTensorInTwoGroups) {
  OptimizerGroup one{{}, weights_.pointers()};
  OptimizerGroup other = one;
  one.weights[2] = nullptr;
  other.weights[0] = nullptr;
  other.weights[1] = nullptr;
  EXPECT_TRUE(CheckGroups(layout_, std::vector{one, other}).ok());
  other.config.lr = -1;
  ExpectInvalid(CheckGroups(layout_, std::vector{one, other}), "lr");
  other.config.lr = 1;
  other.weights[0] = weights_.pointers()[0];
  ExpectInvalid(CheckGroups(layout_, std::vector{one, other}),
                "tensor 0 is in two groups");
  auto pointers = weights_.pointers();
  pointers.pop_back();
  other.weights = pointers;
  ExpectInvalid(CheckGroups(layout_, std::vector{other}), "seen 2");
  ExpectInvalid(optimizer_.Update({}, gradients_, pointers),
                "weights of 3 tensors, seen 2");
}

TEST_F(OptimizerErrors, RefuseExtentsOutsideThePoolOrOutOfOrder) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  const std::vector<std::vector<Extent>> bad = {
      {{0, 8}},    {{8, 0}},         {{3, huge}},
      {{huge, 3}}, {{2, 3}, {4, 1}}, {{4, 1}, {0, 2}}};
  for (const auto& extents : bad) {
    gradients_.extents = extents;
    ExpectInvalid(Update({}), "extents");
  }
}

TEST_F(OptimizerErrors, ReportAKernelThatFails) {
  CpuKernelTable failing = kernels::CpuKernels();
  failing.sgd = [](const kernels::SgdArgs&, void*) { return 719; };
  Optimizer optimizer(layout_, failing);
  const Status status = optimizer.Update({}, gradients_, weights_.pointers());
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("sgd"), std::string::npos);
  EXPECT_NE(status.message().find("719"), std::string::npos);
}

TEST(Optimizer, UsesTheLarsRateOneWhereANormIsZero) {
  const PoolLayout layout = PoolLayout::Create({2, 2}).value();
  const OptimizerOptions config{
      .kind = OptimizerOptions::Kind::kLars, .lr = 0.5F, .weight_decay = 0.25F};
  const std::vector<Extent> all = {{0, 4}};
  // Tensor 1 (in front): no gradient. Tensor 0: no weights.
  const std::vector<float> pool = {0, 0, 3, -4};
  std::vector<float> none = {0, 0};
  std::vector<float> some = {2, -8};
  const std::vector<float*> weights = {none.data(), some.data()};
  Optimizer optimizer(layout, kernels::CpuKernels());
  ASSERT_TRUE(
      optimizer.Update(config, {pool.data(), DType::kFloat32, all}, weights)
          .ok());
  EXPECT_EQ(none, (std::vector<float>{-1.5F, 2.0F}));
  EXPECT_EQ(some, (std::vector<float>{1.75F, -7.0F}));  // Decay only.
}

TEST(Optimizer, TakesTheLarsGradientNormFromWhatWasSent) {
  const PoolLayout layout = PoolLayout::Create({4}).value();
  const OptimizerOptions config{.kind = OptimizerOptions::Kind::kLars,
                                .lr = 1.0F,
                                .lars_eta = 1.0F,
                                .lars_eps = 0.0F};
  const std::vector<Extent> sent = {{0, 1}, {2, 1}};
  const std::vector<float> pool = {3, 100, 4, 100};  // Sent norm: 5.
  std::vector<float> weights = {5, 5, 5, 5};         // Full norm: 10.
  const std::vector<float*> pointers = {weights.data()};
  Optimizer optimizer(layout, kernels::CpuKernels());
  ASSERT_TRUE(
      optimizer.Update(config, {pool.data(), DType::kFloat32, sent}, pointers)
          .ok());
  EXPECT_EQ(weights, (std::vector<float>{-1, 5, -3, 5}));  // Factor 2.
}

TEST(Optimizer, GoesOnFromRestoredMomentumBitForBit) {
  std::mt19937 random(8);
  const PoolLayout layout = PoolLayout::Create({17, 0, 40}).value();
  const std::vector<Extent> all = {{0, 57}};
  Weights one(layout, random);
  Optimizer saved(layout, kernels::CpuKernels());
  const auto step = [&](Optimizer& optimizer, Weights& weights,
                        const std::vector<float>& pool) {
    return optimizer
        .Update({}, {pool.data(), DType::kFloat32, all}, weights.pointers())
        .ok();
  };
  ASSERT_TRUE(step(saved, one, RandomFloats(57, random)));
  Weights two = one;
  Optimizer restored(layout, kernels::CpuKernels());
  // One byte off alignment, as it may be in a file.
  std::vector<std::byte> bytes(1 + 57 * sizeof(float));
  std::memcpy(bytes.data() + 1, saved.momentum().data(), bytes.size() - 1);
  ASSERT_TRUE(restored.RestoreMomentum(std::span(bytes).subspan(1)).ok());
  const auto pool = RandomFloats(57, random);
  ASSERT_TRUE(step(saved, one, pool));
  ASSERT_TRUE(step(restored, two, pool));
  EXPECT_TRUE(one == two);

  EXPECT_EQ(restored.RestoreMomentum(bytes).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(restored.RestoreMomentum({}).ok());
  EXPECT_TRUE(restored.momentum().empty());
}

TEST(Optimizer, ServesAPoolWithoutElements) {
  const PoolLayout layout = PoolLayout::Create({0}).value();
  Optimizer optimizer(layout, kernels::CpuKernels());
  const std::vector<float*> weights = {nullptr};
  EXPECT_TRUE(
      optimizer.Update({}, {nullptr, DType::kFloat32, {}}, weights).ok());
  EXPECT_TRUE(optimizer.RestoreMomentum({}).ok());
}

}  // namespace
}  // namespace gradientflow
