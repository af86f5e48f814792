#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "integrations/c/gradientflow_csc.h"
#include "tests/csc/csc_reference.h"

// gf_csc with an exchange of the test's own, compared with the float64
// reference.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kChunk = 30;
constexpr std::size_t kElements = 400;
// Buckets whose borders do not cut a chunk of the reference's pool.
constexpr std::size_t kBuckets[] = {5 * kChunk, 1 * kChunk,
                                    kElements - 6 * kChunk};
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Close {
  void operator()(gf_csc* csc) const { gf_csc_close(csc); }
};

// One rank: its gradients, residuals and packed buffers, by bucket.
class Rank {
 public:
  explicit Rank(const gf_csc_config& config,
                const std::vector<std::uint8_t>& dense) {
    gf_csc* csc = nullptr;
    EXPECT_EQ(gf_csc_open(&config, &csc), GF_OK);
    csc_.reset(csc);
    std::size_t begin = 0;
    for (const std::size_t elements : kBuckets) {
      grads.emplace_back(elements);
      residual.emplace_back(elements);
      packed.emplace_back(elements + 20);
      norms.emplace_back((elements + kChunk - 1) / kChunk);
      buckets.push_back(nullptr);
      EXPECT_EQ(gf_csc_add(csc, elements, GF_FLOAT32, residual.back().data(),
                           dense.data() + begin, nullptr, &buckets.back()),
                GF_OK);
      begin += norms.back().size();
    }
  }
  void Pack(std::size_t b, float scale) {
    EXPECT_EQ(gf_csc_pack(buckets[b], grads[b].data(), packed[b].data(), scale,
                          norms[b].data()),
              GF_OK);
  }
  // Element `i` over all buckets.
  static float At(const std::vector<std::vector<float>>& values,
                  std::size_t i) {
    std::size_t b = 0;
    while (i >= values[b].size()) i -= values[b++].size();
    return values[b][i];
  }
  gf_csc* csc() const { return csc_.get(); }

  std::vector<std::vector<float>> grads;
  std::vector<std::vector<float>> residual;
  std::vector<std::vector<float>> packed;
  std::vector<std::vector<float>> norms;
  std::vector<gf_csc_bucket*> buckets;

 private:
  std::unique_ptr<gf_csc, Close> csc_;
};

class Ranks {
 public:
  Ranks(int size, const gf_csc_config& config,
        const std::vector<std::uint8_t>& dense) {
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<Rank>(config, dense));
    }
  }
  Rank& operator[](std::size_t r) { return *ranks_[r]; }
  std::size_t size() const { return ranks_.size(); }

  // Takes a step with gradients[rank][element]. Returns whether ranks must skip
  // it.
  bool Step(const std::vector<std::vector<double>>& gradients) {
    std::int32_t nonfinite = 0;
    std::size_t begin = 0;
    for (std::size_t b = 0; b < std::size(kBuckets); ++b) {
      for (std::size_t r = 0; r < size(); ++r) {
        auto& grads = ranks_[r]->grads[b];
        for (std::size_t i = 0; i < grads.size(); ++i) {
          grads[i] = static_cast<float>(gradients[r][begin + i]);
        }
        ranks_[r]->Pack(b, 1.0F / static_cast<float>(size()));
      }
      begin += kBuckets[b];
      Sum(b, ranks_[0]->buckets[b]->packed_elements);
      std::int32_t bad = 7;
      for (auto& rank : ranks_) {
        EXPECT_EQ(gf_csc_unpack(rank->buckets[b], &bad), GF_OK);
      }
      nonfinite |= bad;
    }
    std::vector<float> sums;
    for (std::size_t b = 0; b < std::size(kBuckets); ++b) {
      for (std::size_t c = 0; c < ranks_[0]->norms[b].size(); ++c) {
        sums.push_back(0);
        for (auto& rank : ranks_) sums.back() += rank->norms[b][c];
      }
    }
    for (auto& rank : ranks_) {
      EXPECT_EQ(gf_csc_end_step(rank->csc(), nonfinite), GF_OK);
      EXPECT_EQ(gf_csc_select(rank->csc(), sums.data(), sums.size()), GF_OK);
    }
    return nonfinite != 0;
  }

 private:
  void Sum(std::size_t bucket, std::size_t elements) {
    for (std::size_t i = 0; i < elements; ++i) {
      float sum = 0;
      for (auto& rank : ranks_) sum += rank->packed[bucket][i];
      for (auto& rank : ranks_) rank->packed[bucket][i] = sum;
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

gf_csc_config Config() {
  gf_csc_config config;
  gf_csc_config_init(&config);
  config.chunk_elements = kChunk;
  config.sparsity = 0.6;
  config.warmup_steps = 4;
  config.wire_dtype = GF_FLOAT32;
  return config;
}

std::vector<std::vector<double>> Random(std::size_t ranks,
                                        std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<std::vector<double>> all(ranks);
  for (auto& mine : all) {
    for (std::size_t i = 0; i < kElements; ++i) {
      mine.push_back(normal(random) * static_cast<float>(1 + i / 50 % 3));
    }
  }
  return all;
}

TEST(CApiCsc, FollowsTheReferenceOnAnyNumberOfRanks) {
  for (const int size : {1, 2, 3, 5, 7, 8}) {
    SCOPED_TRACE(::testing::Message() << size << " ranks");
    std::mt19937 random(static_cast<unsigned>(size));
    CscSettings settings;
    settings.ranks = size;
    settings.elements = kElements;
    settings.chunk_elements = kChunk;
    settings.sparsity = 0.6;
    settings.warmup_steps = 4;
    settings.momentum_residual = false;
    settings.always_dense.assign(kElements, 0);
    settings.always_dense[5 * kChunk + 1] = 1;
    CscReference reference(settings);
    std::vector<std::uint8_t> dense(14, 0);
    dense[5] = 1;
    Ranks ranks(size, Config(), dense);
    for (int step = 0; step < 12; ++step) {
      const auto gradients = Random(ranks.size(), random);
      ASSERT_FALSE(ranks.Step(gradients));
      reference.Step(gradients);
      for (int r = 0; r < size; ++r) {
        Rank& rank = ranks[static_cast<std::size_t>(r)];
        for (std::size_t i = 0; i < kElements; ++i) {
          ASSERT_NEAR(Rank::At(rank.grads, i), reference.pool(r, i), 1e-4);
          ASSERT_NEAR(Rank::At(rank.residual, i), reference.residual(r, i),
                      1e-4);
        }
      }
    }
  }
}

TEST(CApiCsc, TellsAllRanksOfWhatOneRankKeepsBack) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    std::mt19937 random(3);
    Ranks ranks(3, Config(), std::vector<std::uint8_t>(14, 0));
    for (int step = 0; step < 6; ++step) {
      EXPECT_FALSE(ranks.Step(Random(3, random)));
    }
    const std::size_t chunks = ranks[0].buckets[0]->chunks;
    ASSERT_EQ(chunks, 5U);
    const std::uint8_t* selected = ranks[0].buckets[0]->selected;
    for (const bool sent : {false, true}) {
      std::size_t c = 0;
      while (c < chunks && (selected[c] != 0) != sent) ++c;
      if (c == chunks) continue;
      auto gradients = Random(3, random);
      gradients[2][c * kChunk + 4] = double{bad};
      EXPECT_TRUE(ranks.Step(gradients));
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_FALSE(std::isfinite(ranks[r].grads[0][c * kChunk + 4]));
        for (const auto& residual : ranks[r].residual) {
          for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
        }
      }
      selected = ranks[0].buckets[0]->selected;
      EXPECT_NE(selected[c], 0) << "sent next, whatever it was";
    }
    EXPECT_FALSE(ranks.Step(Random(3, random)));
  }
}

TEST(CApiCsc, ResidualsFollowTheLossScale) {
  std::mt19937 random(4);
  Ranks plain(2, Config(), std::vector<std::uint8_t>(14, 0));
  Ranks scaled(2, Config(), std::vector<std::uint8_t>(14, 0));
  for (const float scale : {1.0F, 256.0F, 256.0F, 0.5F, 64.0F, 64.0F}) {
    auto gradients = Random(2, random);
    EXPECT_FALSE(plain.Step(gradients));
    for (auto& mine : gradients) {
      for (double& value : mine) value *= double{scale};
    }
    for (std::size_t r = 0; r < 2; ++r) {
      float factor = 0;
      EXPECT_EQ(gf_csc_set_loss_scale(scaled[r].csc(), scale, &factor), GF_OK);
    }
    EXPECT_FALSE(scaled.Step(gradients));
    // The factors are powers of two, so the bits are the same.
    for (std::size_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(Rank::At(scaled[1].grads, i),
                scale * Rank::At(plain[1].grads, i));
      EXPECT_EQ(Rank::At(scaled[1].residual, i),
                scale * Rank::At(plain[1].residual, i));
    }
    EXPECT_EQ(scaled[0].norms, plain[0].norms);
  }
  float factor = 0;
  EXPECT_EQ(gf_csc_set_loss_scale(plain[0].csc(), 0, &factor),
            GF_INVALID_ARGUMENT);
}

TEST(CApiCsc, GoesOnFromWhatWasSaved) {
  std::mt19937 random(5);
  const std::vector<std::uint8_t> dense(14, 0);
  Ranks through(2, Config(), dense);
  for (int step = 0; step < 3; ++step) through.Step(Random(2, random));
  gf_csc_config config = Config();
  config.step = gf_csc_step(through[0].csc());
  EXPECT_EQ(config.step, 3U);
  Ranks again(2, config, dense);
  for (std::size_t r = 0; r < 2; ++r) {
    again[r].residual = through[r].residual;
    ASSERT_EQ(gf_csc_drop(again[r].csc(), 0), GF_OK);
    for (std::size_t b = 0; b < std::size(kBuckets); ++b) {
      ASSERT_EQ(
          gf_csc_add(again[r].csc(), kBuckets[b], GF_FLOAT32,
                     again[r].residual[b].data(), dense.data(),
                     through[r].buckets[b]->selected, &again[r].buckets[b]),
          GF_OK);
    }
  }
  for (int step = 0; step < 4; ++step) {
    const auto gradients = Random(2, random);
    through.Step(gradients);
    again.Step(gradients);
    EXPECT_EQ(again[1].grads, through[1].grads);
    EXPECT_EQ(again[0].residual, through[0].residual);
  }
}

TEST(CApiCsc, RefusesSettingsOutOfRange) {
  gf_csc* csc = nullptr;
  gf_csc_config config = Config();
  config.sparsity = 1;
  EXPECT_EQ(gf_csc_open(&config, &csc), GF_INVALID_ARGUMENT);
  EXPECT_NE(std::string(gf_last_error()).find("sparsity"), std::string::npos);
  config = Config();
  config.chunk_elements = 0;
  EXPECT_EQ(gf_csc_open(&config, &csc), GF_INVALID_ARGUMENT);
  config = Config();
  config.wire_dtype = GF_FLOAT64;
  EXPECT_EQ(gf_csc_open(&config, &csc), GF_INVALID_ARGUMENT);
  for (const float scale : {0.0F, -1.0F, kInf, std::nanf(""), 1e-40F}) {
    config = Config();
    config.loss_scale = scale;
    EXPECT_EQ(gf_csc_open(&config, &csc), GF_INVALID_ARGUMENT) << scale;
  }
  for (const float factor : {-1.0F, kInf, std::nanf("")}) {
    config = Config();
    config.keep_factor = factor;
    EXPECT_EQ(gf_csc_open(&config, &csc), GF_INVALID_ARGUMENT) << factor;
  }
  EXPECT_EQ(csc, nullptr);
  EXPECT_EQ(gf_csc_step(nullptr), 0U);
  EXPECT_EQ(gf_csc_get_factors(nullptr).kept_norm, 0.0F);
}

TEST(CApiCsc, TakesAnyValueButZeroForAlwaysDense) {
  std::mt19937 random(8);
  Ranks ranks(2, Config(), std::vector<std::uint8_t>(14, 0xFF));
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(ranks.Step(Random(2, random)));
    for (const gf_csc_bucket* bucket : ranks[0].buckets) {
      EXPECT_EQ(std::count(bucket->selected, bucket->selected + bucket->chunks,
                           std::uint8_t{1}),
                static_cast<std::ptrdiff_t>(bucket->chunks));
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
