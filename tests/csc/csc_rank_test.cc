// Algorithm 1 of arXiv 1902.06855 (momentum-corrected coarse-grained sparse
// communication) on one rank, assembled from its parts: the residual kernel,
// the selection and the chunk-aware optimizer. csc_golden.h has the published
// values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/optimizer/optimizer.h"
#include "kernels/kernels.h"
#include "tests/csc/gradients.h"

namespace gradientflow {
namespace {

using kernels::CpuKernelTable;
using testing::Bits;
using testing::RandomFloats;
using testing::Rounding;
using testing::ToFloats;
using testing::ToPool;

constexpr float kMomentum = 0.9F;
constexpr OptimizerOptions kSgd{.lr = 0.1F, .momentum = kMomentum};

// One rank, whose exchange is the identity.
class Rank {
 public:
  Rank(const PoolLayout& layout, std::size_t chunk_elements,
       const CpuKernelTable& table)
      : layout_(layout),
        chunk_elements_(chunk_elements),
        table_(table),
        optimizer_(layout, table),
        residual_(layout.elements()) {
    for (std::size_t i = 0; i < layout.tensors(); ++i) {
      weights_.emplace_back(layout.tensor_elements(i));
    }
  }

  // Returns the pool after the exchange.
  std::vector<float> Step(const std::vector<float>& gradients, DType type,
                          const std::vector<std::uint8_t>& important) {
    std::vector<std::byte> pool = ToPool(gradients, type);
    for (std::size_t begin = 0; begin < gradients.size();
         begin += chunk_elements_) {
      table_.residual({.grads = pool.data() + begin * SizeOf(type),
                       .type = type,
                       .residual = residual_.data() + begin,
                       .n = std::min(chunk_elements_, gradients.size() - begin),
                       .send = important[begin / chunk_elements_] != 0,
                       .zero_kept = false,
                       .keep_factor = kMomentum,
                       .norm = nullptr},
                      nullptr);
    }
    const auto plan =
        PlanSparse({gradients.size(), chunk_elements_, important}, 100, 4);
    std::vector<float*> weights;
    for (auto& tensor : weights_) weights.push_back(tensor.data());
    const auto extents = ExtentsOf(plan);
    EXPECT_TRUE(
        optimizer_.Update(kSgd, {pool.data(), type, extents}, weights).ok());
    return ToFloats(pool, type);
  }

  const std::vector<float>& residual() const { return residual_; }
  float momentum(std::size_t i) const { return optimizer_.momentum()[i]; }
  // The weight of element `i` of the pool.
  float weight(std::size_t i) const {
    const TensorPart part = layout_.Parts({i, 1}).front();
    return weights_[part.tensor][part.begin];
  }

 private:
  const PoolLayout& layout_;
  const std::size_t chunk_elements_;
  const CpuKernelTable& table_;
  Optimizer optimizer_;
  std::vector<float> residual_;
  std::vector<std::vector<float>> weights_;
};

TEST(CscRank, IsDenseMomentumSgdBitForBitWhenEveryChunkIsImportant) {
  std::mt19937 random(3);
  const PoolLayout layout = PoolLayout::Create({13, 0, 41, 7}).value();
  const CpuKernelTable& table = kernels::CpuKernels();
  for (DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Rank sparse(layout, 8, table);
    Optimizer dense(layout, table);
    std::vector<std::vector<float>> weights;
    for (std::size_t i = 0; i < layout.tensors(); ++i) {
      weights.emplace_back(layout.tensor_elements(i));
    }
    const std::vector<float*> pointers = {weights[0].data(), weights[1].data(),
                                          weights[2].data(), weights[3].data()};
    const std::vector<Extent> all = {{0, layout.elements()}};
    for (int step = 0; step < 20; ++step) {
      const auto gradients = RandomFloats(layout.elements(), random);
      (void)sparse.Step(gradients, type, std::vector<std::uint8_t>(8, 1));
      const auto pool = ToPool(gradients, type);
      ASSERT_TRUE(dense.Update(kSgd, {pool.data(), type, all}, pointers).ok());
      for (std::size_t i = 0; i < layout.elements(); ++i) {
        const TensorPart part = layout.Parts({i, 1}).front();
        const float w = sparse.weight(i);
        const float hu = sparse.momentum(i);
        ASSERT_EQ(Bits(w), Bits(weights[part.tensor][part.begin]));
        ASSERT_EQ(Bits(hu), Bits(dense.momentum()[i]));
      }
    }
  }
}

// For each element: sent + hg / m == g + old hg if it is kept, and sent + hg ==
// g + old hg if it is sent.
TEST(CscRank, ConservesEveryGradient) {
  std::mt19937 random(4);
  for (auto table = kernels::AllCpuKernels(); *table != nullptr; ++table) {
    for (DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const PoolLayout layout = PoolLayout::Create({30, 101, 5}).value();
      Rank rank(layout, 17, **table);
      for (int step = 0; step < 20; ++step) {
        const std::vector<float> before = rank.residual();
        const auto rounded =
            ToPool(RandomFloats(layout.elements(), random), type);
        const std::vector<float> gradients = ToFloats(rounded, type);
        std::vector<std::uint8_t> important(8);
        for (std::uint8_t& one : important) one = random() % 2;
        const auto pool = rank.Step(gradients, type, important);
        for (std::size_t i = 0; i < pool.size(); ++i) {
          const bool is_sent = important[i / 17] != 0;
          const double sent = is_sent ? pool[i] : 0;
          const double total = double{gradients[i]} + before[i];
          // The rounding error of a sum is kept undecayed.
          const double kept =
              rank.residual()[i] / (is_sent ? 1.0 : double{kMomentum});
          ASSERT_NEAR(sent + kept, total, 0x1p-22 * std::fabs(total) + 1e-7)
              << Name(type) << " element " << i;
          if (is_sent && type == DType::kFloat32) {
            ASSERT_EQ(rank.residual()[i], 0.0F);
          }
        }
      }
    }
  }
}

// A delay of k steps weights a gradient by m^k: the float64 oracle unrolls the
// history, chunk by chunk, across tensor borders.
TEST(CscRank, WeighsADelayedGradientByItsDelay) {
  std::mt19937 random(6);
  const PoolLayout layout = PoolLayout::Create({11, 23, 0, 6}).value();
  const std::size_t chunk = 9;  // Five chunks, the last of 4 elements.
  Rank rank(layout, chunk, kernels::CpuKernels());
  const std::size_t n = layout.elements();
  std::vector<std::vector<double>> waiting(n);
  std::vector<double> hu(n);
  std::vector<double> w(n);
  for (int step = 0; step < 60; ++step) {
    const auto gradients = RandomFloats(n, random);
    std::vector<std::uint8_t> important(5);
    for (std::uint8_t& one : important) one = random() % 3 == 0;
    (void)rank.Step(gradients, DType::kFloat32, important);
    for (std::size_t i = 0; i < n; ++i) {
      waiting[i].push_back(gradients[i]);
      if (important[i / chunk] == 0) continue;
      double sum = 0;
      for (std::size_t k = 0; k < waiting[i].size(); ++k) {
        sum += waiting[i][waiting[i].size() - 1 - k] *
               std::pow(double{kMomentum}, static_cast<double>(k));
      }
      waiting[i].clear();
      hu[i] = kMomentum * hu[i] + double{kSgd.lr} * sum;
      w[i] -= hu[i];
    }
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(rank.momentum(i), hu[i], 1e-5);
      ASSERT_NEAR(rank.weight(i), w[i], 1e-5 * (1 + std::fabs(w[i])));
    }
  }
}

}  // namespace
}  // namespace gradientflow
