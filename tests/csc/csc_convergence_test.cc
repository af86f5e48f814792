// Whether training still converges when 85 % of the chunks are kept back:
// simulated ranks on a noisy least-squares problem, with the parts that a
// session uses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/buckets/bucket_plan.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/csc/chunk_selector.h"
#include "gradientflow/optimizer/optimizer.h"
#include "kernels/kernels.h"

namespace gradientflow {
namespace {

constexpr std::size_t kRanks = 3;
constexpr std::size_t kSamples = 1500;  // Per rank.
constexpr std::size_t kBatch = 25;      // Per rank and step.
constexpr std::size_t kChunk = 5;
constexpr int kSteps = 1000;

// targets = inputs * truth + noise; features of unequal size, so that chunks
// differ in importance.
class Problem {
 public:
  explicit Problem(std::size_t features) : features_(features) {
    std::mt19937 random(42);
    std::normal_distribution<float> normal;
    std::vector<float> truth(features);
    for (float& t : truth) t = normal(random);
    for (std::size_t s = 0; s < kRanks * kSamples; ++s) {
      float target = 0.5F * normal(random);
      for (std::size_t f = 0; f < features; ++f) {
        const float size = 0.6F + 0.6F * static_cast<float>(f * 7 % 13) / 13;
        inputs_.push_back(size * normal(random));
        target += inputs_.back() * truth[f];
      }
      targets_.push_back(target);
    }
  }

  // The gradient of one random batch of `rank`; both vectors are in pool order.
  void Gradient(std::size_t rank, const std::vector<float>& weights,
                std::mt19937& random, std::vector<float>* gradient) const {
    gradient->assign(features_, 0);
    for (std::size_t b = 0; b < kBatch; ++b) {
      const std::size_t s = rank * kSamples + random() % kSamples;
      const float scale = Error(s, weights) / kBatch;
      for (std::size_t f = 0; f < features_; ++f) {
        (*gradient)[f] += scale * inputs_[s * features_ + f];
      }
    }
  }

  double Loss(const std::vector<float>& weights) const {
    double sum = 0;
    for (std::size_t s = 0; s < targets_.size(); ++s) {
      const double error = Error(s, weights);
      sum += error * error;
    }
    return sum / static_cast<double>(targets_.size());
  }

 private:
  float Error(std::size_t s, const std::vector<float>& weights) const {
    float error = -targets_[s];
    for (std::size_t f = 0; f < features_; ++f) {
      error += inputs_[s * features_ + f] * weights[f];
    }
    return error;
  }

  std::size_t features_;
  std::vector<float> inputs_;
  std::vector<float> targets_;
};

struct Mode {
  double sparsity = 0;
  bool correct_momentum = true;  // Else a plain residual, and any optimizer.
  float momentum = 0.9F;
  float lr = 0.002F;
};

struct Outcome {
  double loss = 0;
  double share_sent = 0;
};

// All ranks of a job, in lockstep.
class Job {
 public:
  Job(const PoolLayout& layout, const Problem& problem, const Mode& mode)
      : layout_(layout),
        problem_(problem),
        mode_(mode),
        selector_(ChunkSelector::Create({.pool_elements = layout.elements(),
                                         .chunk_elements = kChunk,
                                         .sparsity = mode.sparsity,
                                         .warmup_steps = kSteps / 20})
                      .value()),
        optimizer_(layout, kernels::CpuKernels()),
        weights_(layout.elements()),
        pools_(kRanks),
        residuals_(kRanks, std::vector<float>(layout.elements())) {}

  Outcome Train() {
    std::mt19937 random(1);
    std::size_t sent = 0;
    for (int step = 0; step < kSteps; ++step) {
      norm_sums_.assign(selector_.chunks(), 0.0F);
      for (std::size_t r = 0; r < kRanks; ++r) {
        problem_.Gradient(r, weights_, random, &pools_[r]);
        BeforeExchange(r);
      }
      const auto extents = Exchange();
      for (const Extent& extent : extents) sent += extent.count;
      AddNormsOfTheMean(extents);
      Update(extents);
      EXPECT_TRUE(
          selector_.Select(static_cast<std::uint64_t>(step) + 1, norm_sums_)
              .ok());
    }
    return {problem_.Loss(weights_),
            static_cast<double>(sent) / kSteps /
                static_cast<double>(layout_.elements())};
  }

 private:
  void BeforeExchange(std::size_t rank) {
    for (std::size_t c = 0; c < selector_.chunks(); ++c) {
      const Extent chunk = selector_.chunk(c);
      const bool send = selector_.selected()[c] != 0;
      float norm = 0;
      kernels::CpuKernels().residual(
          {.grads = pools_[rank].data() + chunk.begin,
           .type = DType::kFloat32,
           .residual = residuals_[rank].data() + chunk.begin,
           .n = chunk.count,
           .send = send,
           .zero_kept = !mode_.correct_momentum,
           .keep_factor = mode_.correct_momentum ? mode_.momentum : 1.0F,
           .norm = &norm},
          nullptr);
      if (!send) norm_sums_[c] += norm;
    }
  }

  // Computes the mean over the ranks, into the pool of rank 0.
  std::vector<Extent> Exchange() {
    auto extents = ExtentsOf(
        PlanSparse({layout_.elements(), kChunk, selector_.selected()}, 64, 4));
    for (const Extent& extent : extents) {
      for (std::size_t i = extent.begin; i < extent.begin + extent.count; ++i) {
        for (std::size_t r = 1; r < kRanks; ++r) pools_[0][i] += pools_[r][i];
        pools_[0][i] /= kRanks;
      }
    }
    return extents;
  }

  // Every rank has the same mean, so this adds `kRanks` times its norm.
  void AddNormsOfTheMean(const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) {
      for (std::size_t i = extent.begin; i < extent.begin + extent.count; ++i) {
        norm_sums_[i / kChunk] += kRanks * std::fabs(pools_[0][i]);
      }
    }
  }

  void Update(const std::vector<Extent>& extents) {
    const OptimizerOptions config{.lr = mode_.lr, .momentum = mode_.momentum};
    std::vector<float*> weights;
    for (std::size_t i = 0; i < layout_.tensors(); ++i) {
      weights.push_back(weights_.data() + layout_.offset(i));
    }
    const std::vector<Extent> all = {{0, layout_.elements()}};
    // Any other optimizer sees the whole pool, with zeros in kept chunks.
    EXPECT_TRUE(optimizer_
                    .Update(config,
                            {pools_[0].data(), DType::kFloat32,
                             mode_.correct_momentum ? extents : all},
                            weights)
                    .ok());
  }

  const PoolLayout& layout_;
  const Problem& problem_;
  const Mode mode_;
  ChunkSelector selector_;
  Optimizer optimizer_;
  std::vector<float> weights_;  // Pool order.
  std::vector<std::vector<float>> pools_;
  std::vector<std::vector<float>> residuals_;
  std::vector<float> norm_sums_;
};

class CscConvergence : public ::testing::Test {
 protected:
  Outcome Train(const Mode& mode) {
    return Job(layout_, problem_, mode).Train();
  }

  // 101 features: 21 chunks, the last of one element.
  const PoolLayout layout_ = PoolLayout::Create({3, 40, 0, 51, 7}).value();
  const Problem problem_{101};
};

TEST_F(CscConvergence, ReachesTheDenseLossWithMomentumCorrection) {
  const Outcome dense = Train({});
  const Outcome sparse = Train({.sparsity = 0.85});
  const double start = problem_.Loss(std::vector<float>(101));
  RecordProperty("dense_loss", std::to_string(dense.loss));
  RecordProperty("sparse_loss", std::to_string(sparse.loss));
  EXPECT_EQ(dense.share_sent, 1.0);
  EXPECT_LT(sparse.share_sent, 0.19);  // 3 of 21 chunks after warm-up.
  EXPECT_LT(dense.loss, 0.02 * start);
  EXPECT_LT(sparse.loss, 1.03 * dense.loss) << dense.loss;
}

TEST_F(CscConvergence, ReachesTheDenseLossWithAPlainResidual) {
  for (float momentum : {0.0F, 0.9F}) {
    const float lr = momentum == 0 ? 0.02F : 0.002F;
    const Outcome dense = Train({.momentum = momentum, .lr = lr});
    const Outcome sparse = Train({.sparsity = 0.85,
                                  .correct_momentum = false,
                                  .momentum = momentum,
                                  .lr = lr});
    EXPECT_LT(sparse.share_sent, 0.19);
    EXPECT_LT(sparse.loss, 1.03 * dense.loss) << dense.loss;
  }
}

}  // namespace
}  // namespace gradientflow
