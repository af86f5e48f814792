#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/csc/memory.h"
#include "gradientflow/device/device.h"
#include "integrations/c/gradientflow_csc.h"
#include "integrations/c/handles.h"
#include "tests/csc/csc_reference.h"
#include "tests/device/fake_device.h"

// gf_csc with an exchange of the test's own, compared with the float64
// reference: in the host's memory, and in that of a device.
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

// The tensors of each bucket, one per chunk.
std::vector<gf_tensor> TensorsOf(std::size_t elements,
                                 const std::uint8_t* dense) {
  std::vector<gf_tensor> tensors;
  for (std::size_t i = 0; i < elements; i += kChunk) {
    tensors.push_back({sizeof(gf_tensor), nullptr,
                       std::min(kChunk, elements - i), *dense++, 0});
  }
  return tensors;
}

// Where a rank's gradients are.
enum class Where { kHost, kDevice };

// One rank: its gradients, residuals and packed buffers, by bucket. A device is
// a fake, whose memory the host can reach too, once the stream is empty.
class Rank {
 public:
  Rank(const gf_csc_config& config, const std::vector<std::uint8_t>& dense,
       Where where, const Rank* saved = nullptr) {
    std::shared_ptr<Device> device;
    if (where == Where::kDevice) {
      device = std::make_shared<FakeDevice>(FakeOptions{
          .id = {DeviceId::Kind::kCuda, 0}, .lag = FakeLag::kRandom});
      stream_ = device->NewStream(false).value();
    }
    device_ = device.get();
    csc_.reset(c_api::OpenCsc(config, std::move(device)).value());
    std::size_t begin = 0;
    for (const std::size_t elements : kBuckets) {
      const std::size_t b = buckets.size();
      const auto tensors = TensorsOf(elements, dense.data() + begin);
      grads.push_back(Memory(elements));
      residual.push_back(Memory(elements));
      packed.push_back(Memory(elements + 20));
      norms.push_back(Memory(tensors.size()));
      gf_csc_bucket_config add = {tensors.data(), tensors.size(),
                                  GF_FLOAT32,     residual.back().data(),
                                  nullptr,        0};
      if (saved != nullptr) {
        std::ranges::copy(saved->residual[b], residual[b].begin());
        add.selected = saved->buckets[b]->selected;
        add.selected_count = tensors.size();
      }
      buckets.push_back(nullptr);
      EXPECT_EQ(gf_csc_add(csc(), &add, &buckets.back()), GF_OK);
      begin += tensors.size();
    }
  }
  ~Rank() { Wait(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void Pack(std::size_t b, float scale) {
    EXPECT_EQ(gf_csc_pack(buckets[b], grads[b].data(), packed[b].data(), scale,
                          norms[b].data(), stream()),
              GF_OK);
    Wait();
  }
  void Unpack(std::size_t b) {
    EXPECT_EQ(gf_csc_unpack(buckets[b], stream()), GF_OK);
    Wait();
  }
  void EndStep() {
    EXPECT_EQ(gf_csc_end_step(csc(), stream()), GF_OK);
    Wait();
  }
  void SetLossScale(float scale) {
    float factor = 0;
    EXPECT_EQ(gf_csc_set_loss_scale(csc(), scale, stream(), &factor), GF_OK);
    Wait();
  }
  // Element `i` over all buckets.
  static float At(const std::vector<std::span<float>>& values, std::size_t i) {
    std::size_t b = 0;
    while (i >= values[b].size()) i -= values[b++].size();
    return values[b][i];
  }
  static std::vector<float> All(const std::vector<std::span<float>>& values) {
    std::vector<float> all;
    for (const auto& each : values)
      all.insert(all.end(), each.begin(), each.end());
    return all;
  }
  bool Finite() const {
    const std::vector<float> all = All(grads);
    return std::ranges::all_of(all, [](float v) { return std::isfinite(v); });
  }
  gf_csc* csc() const { return csc_.get(); }

  std::vector<std::span<float>> grads;
  std::vector<std::span<float>> residual;
  std::vector<std::span<float>> packed;
  std::vector<std::span<float>> norms;
  std::vector<gf_csc_bucket*> buckets;

 private:
  void* stream() const { return stream_ ? stream_->native() : nullptr; }
  void Wait() {
    if (stream_ != nullptr) {
      EXPECT_TRUE(stream_->Synchronize().ok());
    }
  }
  std::span<float> Memory(std::size_t elements) {
    const std::size_t bytes = elements * sizeof(float);
    memory_.push_back(device_ != nullptr
                          ? device_->Allocate(bytes).value()
                          : HostCscMemory()->Allocate(bytes).value());
    return {reinterpret_cast<float*>(memory_.back().get()), elements};
  }

  std::unique_ptr<gf_csc, Close> csc_;  // Has the device.
  Device* device_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceMemory> memory_;
};

class Ranks {
 public:
  Ranks(int size, const gf_csc_config& config,
        const std::vector<std::uint8_t>& dense, Where where = Where::kHost) {
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<Rank>(config, dense, where));
    }
  }
  Rank& operator[](std::size_t r) { return *ranks_[r]; }
  std::size_t size() const { return ranks_.size(); }
  // Goes on with new handles, from what can be saved of the old ones.
  void Reopen(const gf_csc_config& config,
              const std::vector<std::uint8_t>& dense, Where where) {
    for (auto& rank : ranks_) {
      rank = std::make_unique<Rank>(config, dense, where, rank.get());
    }
  }

  // Takes a step with gradients[rank][element]. Returns whether ranks must skip
  // it.
  bool Step(const std::vector<std::vector<double>>& gradients) {
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
      for (auto& rank : ranks_) rank->Unpack(b);
    }
    std::vector<float> sums(Rank::All(ranks_[0]->norms).size());
    for (auto& rank : ranks_) {
      EXPECT_EQ(rank->Finite(), ranks_[0]->Finite()) << "on all ranks alike";
      const std::vector<float> norms = Rank::All(rank->norms);
      for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += norms[c];
    }
    for (auto& rank : ranks_) {
      rank->EndStep();
      EXPECT_EQ(gf_csc_select(rank->csc(), sums.data(), sums.size()), GF_OK);
    }
    return !ranks_[0]->Finite();
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

class CApiCsc : public ::testing::TestWithParam<Where> {};
INSTANTIATE_TEST_SUITE_P(Memory, CApiCsc,
                         ::testing::Values(Where::kHost, Where::kDevice));

TEST_P(CApiCsc, FollowsTheReferenceOnAnyNumberOfRanks) {
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
    Ranks ranks(size, Config(), dense, GetParam());
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

// A chunk of some bucket, and its first gradient, counted over all buckets.
struct Place {
  std::size_t bucket = std::size(kBuckets);
  std::size_t chunk = 0;
  std::size_t gradient = 0;
};

// Returns the first chunk that the next step sends, or keeps back.
Place FindChunk(const Rank& rank, bool sent) {
  std::size_t begin = 0;
  for (std::size_t b = 0; b < std::size(kBuckets); ++b) {
    const gf_csc_bucket& bucket = *rank.buckets[b];
    for (std::size_t c = 0; c < bucket.chunks; ++c) {
      if ((bucket.selected[c] != 0) != sent) continue;
      return {b, c, begin + c * kChunk};
    }
    begin += kBuckets[b];
  }
  return {};
}

TEST_P(CApiCsc, TellsAllRanksOfWhatOneRankKeepsBack) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    std::mt19937 random(3);
    Ranks ranks(3, Config(), std::vector<std::uint8_t>(14, 0), GetParam());
    for (int step = 0; step < 6; ++step) {
      EXPECT_FALSE(ranks.Step(Random(3, random)));
    }
    for (const bool sent : {false, true}) {
      const Place place = FindChunk(ranks[0], sent);
      ASSERT_LT(place.bucket, std::size(kBuckets)) << "no chunk to try it on";
      auto gradients = Random(3, random);
      gradients[2][place.gradient] = double{bad};
      EXPECT_TRUE(ranks.Step(gradients));
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_FALSE(std::isfinite(Rank::At(ranks[r].grads, place.gradient)));
        for (const auto& residual : ranks[r].residual) {
          for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
        }
      }
      EXPECT_NE(ranks[0].buckets[place.bucket]->selected[place.chunk], 0)
          << "sent next, whatever it was";
    }
    EXPECT_FALSE(ranks.Step(Random(3, random)));
  }
}

TEST_P(CApiCsc, ResidualsFollowTheLossScale) {
  std::mt19937 random(4);
  const std::vector<std::uint8_t> dense(14, 0);
  Ranks plain(2, Config(), dense, GetParam());
  Ranks scaled(2, Config(), dense, GetParam());
  for (const float scale : {1.0F, 256.0F, 256.0F, 0.5F, 64.0F, 64.0F}) {
    auto gradients = Random(2, random);
    EXPECT_FALSE(plain.Step(gradients));
    for (auto& mine : gradients) {
      for (double& value : mine) value *= double{scale};
    }
    for (std::size_t r = 0; r < 2; ++r) scaled[r].SetLossScale(scale);
    EXPECT_FALSE(scaled.Step(gradients));
    // The factors are powers of two, so the bits are the same.
    for (std::size_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(Rank::At(scaled[1].grads, i),
                scale * Rank::At(plain[1].grads, i));
      EXPECT_EQ(Rank::At(scaled[1].residual, i),
                scale * Rank::At(plain[1].residual, i));
    }
    EXPECT_EQ(Rank::All(scaled[0].norms), Rank::All(plain[0].norms));
  }
  float factor = 0;
  EXPECT_EQ(gf_csc_set_loss_scale(plain[0].csc(), 0, nullptr, &factor),
            GF_INVALID_ARGUMENT);
}

TEST_P(CApiCsc, GoesOnFromWhatWasSaved) {
  std::mt19937 random(5);
  const std::vector<std::uint8_t> dense(14, 0);
  Ranks through(2, Config(), dense, GetParam());
  Ranks again(2, Config(), dense, GetParam());
  for (int step = 0; step < 7; ++step) {
    const auto gradients = Random(2, random);
    through.Step(gradients);
    again.Step(gradients);
    EXPECT_EQ(Rank::All(again[1].grads), Rank::All(through[1].grads));
    EXPECT_EQ(Rank::All(again[0].residual), Rank::All(through[0].residual));
    gf_csc_config config = Config();
    config.step = gf_csc_step(again[0].csc());
    EXPECT_EQ(config.step, static_cast<std::uint64_t>(step) + 1);
    if (step == 2) again.Reopen(config, dense, GetParam());
    EXPECT_EQ(gf_csc_check(again[0].csc()), GF_OK) << gf_last_error();
  }
}

// The number of chunks that a step sends is known beforehand, and ranks with
// another number would exchange buffers of another size.
TEST_P(CApiCsc, RefusesASavedSelectionOfAnotherStep) {
  std::mt19937 random(6);
  const std::vector<std::uint8_t> dense(14, 0);
  Ranks ranks(1, Config(), dense, GetParam());
  for (int step = 0; step < 2; ++step) ranks.Step(Random(1, random));
  gf_csc_config config = Config();
  for (const bool right : {true, false}) {
    config.step = right ? 2 : 4;
    ranks.Reopen(config, dense, GetParam());
    EXPECT_EQ(gf_csc_check(ranks[0].csc()),
              right ? GF_OK : GF_INVALID_ARGUMENT);
  }
  EXPECT_NE(
      std::string(gf_last_error())
          .find("the selection for step 4 has 10 of 14 chunks, expected 6"),
      std::string::npos)
      << gf_last_error();
  EXPECT_EQ(gf_csc_check(nullptr), GF_INVALID_ARGUMENT);
}

TEST(CApiCscChecks, RefusesASelectionThatDoesNotFit) {
  const gf_csc_config config = Config();
  gf_csc* csc = nullptr;
  ASSERT_EQ(gf_csc_open(&config, &csc), GF_OK);
  const std::unique_ptr<gf_csc, Close> owned(csc);
  const std::uint8_t dense[] = {0, 1, 0};
  const std::vector<gf_tensor> tensors = TensorsOf(2 * kChunk + 2, dense);
  const struct {
    std::vector<std::uint8_t> selected;
    const char* says;
  } wrong[] = {{{0, 1}, "has 2 chunks, expected 3"},
               {{0, 1, 0, 1}, "has 4 chunks"},
               {{0, 1, 2}, "has 2 for chunk 2, expected 0 or 1"},
               {{1, 0, 1}, "has 0 for chunk 1, expected 1 (always dense)"}};
  for (const auto& each : wrong) {
    gf_csc_bucket_config add = {tensors.data(),       3,
                                GF_FLOAT32,           nullptr,
                                each.selected.data(), each.selected.size()};
    gf_csc_bucket* bucket = nullptr;
    EXPECT_EQ(gf_csc_add(csc, &add, &bucket), GF_INVALID_ARGUMENT);
    EXPECT_NE(std::string(gf_last_error()).find(each.says), std::string::npos)
        << gf_last_error();
    add.selected = nullptr;
    ASSERT_EQ(gf_csc_add(csc, &add, &bucket), GF_OK);
    EXPECT_EQ(bucket->chunks, 3U);
    EXPECT_EQ(bucket->selected_chunks, 3U);
    EXPECT_EQ(bucket->packed_elements, 2 * kChunk + 2 + 3);
    add.dtype = GF_INT32;
    EXPECT_EQ(gf_csc_add(csc, &add, &bucket), GF_INVALID_ARGUMENT);
    float values[3] = {};
    EXPECT_EQ(gf_csc_pack(bucket, values, values, 1, values, nullptr),
              GF_INVALID_ARGUMENT)
        << "without a residual";
  }
}

TEST(CApiCscChecks, RefusesSettingsOutOfRange) {
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
  config = Config();
  config.cuda_device = 99;
  const gf_status opened = gf_csc_open(&config, &csc);
  EXPECT_TRUE(opened == GF_UNIMPLEMENTED || opened == GF_INVALID_ARGUMENT);
  EXPECT_EQ(csc, nullptr);
}

TEST(CApiCscChecks, TakesAnyValueButZeroForAlwaysDense) {
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
