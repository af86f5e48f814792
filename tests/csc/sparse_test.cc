#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/session/state_file.h"
#include "tests/csc/csc_reference.h"
#include "tests/session/ranks.h"

// Sparse steps of several ranks, through the session.
namespace gradientflow::testing {
namespace {

using Gradients = std::vector<std::vector<double>>;

const std::vector<TensorSpec>& Tensors() {
  static const std::vector<TensorSpec> tensors = {
      {"a", 130}, {"b", 0}, {"c", 417, true}, {"d", 7}, {"e", 1250}, {"f", 61}};
  return tensors;
}

// Where they lie, as of float32. There is padding behind four of them.
const PoolLayout& Layout() {
  static const PoolLayout layout = [] {
    std::vector<std::size_t> sizes;
    for (const TensorSpec& spec : Tensors()) sizes.push_back(spec.elements);
    return PoolLayout::Aligned(sizes, sizeof(float)).value();
  }();
  return layout;
}

constexpr OptimizerOptions kSgd = {.lr = 0.1F, .momentum = 0.9F};

// The gradients of every rank in a step, in pool order, as float32 values. Some
// parts are larger than others, and that changes. Padding is zero.
Gradients MakeGradients(int ranks, int step) {
  std::mt19937 random(static_cast<unsigned>(step) * 7919 + 1);
  std::normal_distribution<float> normal;
  Gradients gradients(static_cast<std::size_t>(ranks));
  for (auto& mine : gradients) {
    mine.resize(Layout().elements());
    for (const TensorPart& part : Layout().Parts({0, mine.size()})) {
      for (std::size_t i = part.pool_begin; i < part.pool_begin + part.count;
           ++i) {
        const float loud = 1.0F + static_cast<float>((i / 50 + step) % 5);
        mine[i] = double{normal(random) * loud};
      }
    }
  }
  return gradients;
}

// One rank's weights, by tensor.
class Weights {
 public:
  explicit Weights(const std::vector<TensorSpec>& tensors) {
    for (const TensorSpec& spec : tensors) values_.emplace_back(spec.elements);
    for (auto& tensor : values_) pointers_.push_back(tensor.data());
  }
  const std::vector<float*>& pointers() const { return pointers_; }
  const std::vector<std::vector<float>>& values() const { return values_; }
  // Takes the values of other weights, of as many elements.
  void Take(const Weights& other) {
    for (std::size_t t = 0; t < values_.size(); ++t) {
      std::copy(other.values_[t].begin(), other.values_[t].end(),
                values_[t].begin());
    }
  }
  // In pool order, of Tensors().
  std::vector<float> Flat() const {
    std::vector<float> flat(Layout().elements());
    for (std::size_t t = 0; t < values_.size(); ++t) {
      std::copy(values_[t].begin(), values_[t].end(),
                flat.begin() + static_cast<std::ptrdiff_t>(Layout().offset(t)));
    }
    return flat;
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<float*> pointers_;
};

std::size_t Elements(const GradientSession& session) {
  return session.pool().bytes / sizeof(float);
}

float* Pool(const GradientSession& session) {
  return reinterpret_cast<float*>(session.pool().data);
}

StepStats RunStep(GradientSession& session,
                  const std::vector<double>& gradients) {
  float* pool = Pool(session);
  for (std::size_t t = session.tensors(); t-- > 0;) {
    const std::size_t begin = session.pool_offset(t);
    const std::size_t count = session.gradient(t).bytes / sizeof(float);
    for (std::size_t i = begin; i < begin + count; ++i) {
      const float before = session.options().accumulate ? pool[i] : 0;
      pool[i] = before + static_cast<float>(gradients[i]);
    }
    session.GradientReady(t);
  }
  Result<StepStats> stats = session.FinishStep();
  EXPECT_TRUE(stats.ok()) << stats.status().ToString();
  return stats.ok() ? stats.value() : StepStats();
}

std::vector<float> ResidualOf(const GradientSession& session) {
  const std::vector<std::byte> bytes = session.SaveState().value();
  const SavedState state = ReadState(bytes).value();
  std::vector<float> residual(state.residual.size() / sizeof(float));
  std::memcpy(residual.data(), state.residual.data(), state.residual.size());
  return residual;
}

struct Setting {
  const char* name;
  Over over;
  int ranks;
  std::size_t chunk_elements;
  float sparsity;
  std::uint64_t warmup_steps;
  ResidualMode residual;
  bool zero_kept = false;
  bool accumulate = false;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

class Sparse : public ::testing::TestWithParam<Setting> {
 protected:
  Job MakeJob() const {
    const Setting& s = GetParam();
    Job job;
    job.over = s.over;
    job.size = s.ranks;
    job.tensors = Tensors();
    job.weights_on_host = true;
    job.options.bucket_bytes = 700;
    if (s.over == Over::kPlaces) job.options.algorithm = "gdraa";
    job.options.segment_bytes = 4096;
    job.options.sparsity = s.sparsity;
    job.options.chunk_elements = s.chunk_elements;
    job.options.warmup_steps = s.warmup_steps;
    job.options.residual = s.residual;
    job.options.zero_kept = s.zero_kept;
    job.options.accumulate = s.accumulate;
    return job;
  }

  CscSettings ReferenceSettings() const {
    const Setting& s = GetParam();
    CscSettings settings;
    settings.ranks = s.ranks;
    settings.chunk_elements = s.chunk_elements;
    settings.sparsity = double{s.sparsity};
    settings.warmup_steps = s.warmup_steps;
    settings.momentum_residual = s.residual == ResidualMode::kMomentum;
    settings.zero_kept = s.zero_kept;
    settings.elements = Layout().elements();
    settings.always_dense.resize(settings.elements);
    for (const TensorPart& part : Layout().Parts({0, settings.elements})) {
      if (!Tensors()[part.tensor].always_dense) continue;
      std::fill_n(settings.always_dense.begin() +
                      static_cast<std::ptrdiff_t>(part.pool_begin),
                  part.count, 1);
    }
    return settings;
  }
};

TEST_P(Sparse, FollowsTheReference) {
  const CscSettings settings = ReferenceSettings();
  RunRanks(MakeJob(), [&](GradientSession& session) {
    CscReference reference(settings);
    Weights weights(Tensors());
    ASSERT_EQ(Elements(session), settings.elements);
    for (int step = 0; step < 14; ++step) {
      const Gradients g = MakeGradients(settings.ranks, step);
      reference.Step(g);
      const StepStats stats = RunStep(session, g[session.rank()]);
      ASSERT_TRUE(Update(session, kSgd, weights.pointers()).ok());
      ASSERT_EQ(session.selection(), reference.selection()) << "step " << step;
      const std::vector<float> residual = ResidualOf(session);
      const std::vector<float> flat = weights.Flat();
      for (std::size_t i = 0; i < settings.elements; ++i) {
        const int me = session.rank();
        const bool kept = session.selection()[i / settings.chunk_elements] == 0;
        // With accumulate, the pool holds what is kept back.
        ASSERT_NEAR(Pool(session)[i],
                    GetParam().accumulate && kept ? reference.residual(me, i)
                                                  : reference.pool(me, i),
                    1e-4)
            << i;
        ASSERT_NEAR(residual[i], reference.residual(me, i), 1e-4) << i;
        ASSERT_NEAR(flat[i], reference.weight(i), 1e-3) << i;
      }
      ASSERT_TRUE(ZeroAndWait(session).ok());
      EXPECT_EQ(ResidualOf(session), residual);
      EXPECT_EQ(stats.chunks, reference.selection().size());
      if (step == 0) {
        EXPECT_EQ(stats.selected_chunks, stats.chunks);
      }
    }
  });
}

TEST_P(Sparse, RestoredRanksGoOnBitForBit) {
  const CscSettings settings = ReferenceSettings();
  Job job = MakeJob();
  // Between hosts, "auto" measures: another run may add in another order.
  if (job.over == Over::kMixed) job.options.algorithm = "two_level";
  const auto ranks = static_cast<std::size_t>(job.size);
  std::vector<std::vector<std::byte>> states(ranks);
  std::vector<std::vector<std::byte>> ends(ranks);
  std::vector<std::unique_ptr<Weights>> saved(ranks);
  std::vector<std::vector<float>> final_weights(ranks);
  const auto run = [&](GradientSession& session, Weights* w, int begin,
                       int end) {
    for (int step = begin; step < end; ++step) {
      const Gradients g = MakeGradients(settings.ranks, step);
      RunStep(session, g[session.rank()]);
      ASSERT_TRUE(Update(session, kSgd, w->pointers()).ok());
      ASSERT_TRUE(ZeroAndWait(session).ok());
    }
  };
  RunRanks(job, [&](GradientSession& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Weights w(Tensors());
    run(session, &w, 0, 6);
    states[me] = session.SaveState().value();
    saved[me] = std::make_unique<Weights>(Tensors());
    saved[me]->Take(w);
    run(session, &w, 6, 12);
    ends[me] = session.SaveState().value();
    final_weights[me] = w.Flat();
  });
  RunRanks(job, [&](GradientSession& session) {
    const auto me = static_cast<std::size_t>(session.rank());
    Weights w(Tensors());
    w.Take(*saved[me]);
    // Earlier steps must not matter.
    run(session, &w, 3, 5);
    w.Take(*saved[me]);
    ASSERT_TRUE(session.RestoreState(states[me]).ok());
    ASSERT_TRUE(ZeroAndWait(session).ok()) << "there is nothing to zero";
    run(session, &w, 6, 12);
    EXPECT_EQ(session.SaveState().value(), ends[me]);
    EXPECT_EQ(w.Flat(), final_weights[me]);
  });
}

constexpr Setting kSettings[] = {
    {"Alone", Over::kMemory, 1, 40, 0.75F, 0, ResidualMode::kMomentum},
    {"Memory", Over::kMemory, 3, 50, 0.8F, 0, ResidualMode::kMomentum},
    {"WarmUp", Over::kMemory, 2, 9, 0.9F, 8, ResidualMode::kMomentum},
    {"Plain", Over::kMemory, 4, 32, 0.85F, 0, ResidualMode::kPlain},
    {"Messages", Over::kMessages, 5, 33, 0.5F, 3, ResidualMode::kMomentum},
    {"PlainMessages", Over::kMessages, 3, 61, 0.8F, 0, ResidualMode::kPlain},
    {"Places", Over::kPlaces, 5, 33, 0.5F, 3, ResidualMode::kMomentum},
    {"PlainPlaces", Over::kPlaces, 3, 61, 0.8F, 0, ResidualMode::kPlain},
    {"ChunkBeyondPool", Over::kMessages, 2, 100000, 0.5F, 0,
     ResidualMode::kMomentum},
    {"ZeroKept", Over::kMemory, 3, 50, 0.8F, 0, ResidualMode::kMomentum, true},
    {"ZeroKeptDevices", Over::kDevices, 2, 33, 0.85F, 3,
     ResidualMode::kMomentum, true},
    {"SingleElements", Over::kMemory, 2, 1, 0.9F, 0, ResidualMode::kPlain},
    {"Accumulate", Over::kMemory, 3, 50, 0.8F, 2, ResidualMode::kMomentum,
     false, true},
    {"AccumulatePlain", Over::kMessages, 2, 33, 0.85F, 0, ResidualMode::kPlain,
     false, true},
    {"AccumulateTcp", Over::kTcp, 2, 100000, 0.5F, 0, ResidualMode::kMomentum,
     false, true},
    {"AccumulateDevice", Over::kDevices, 1, 40, 0.75F, 0,
     ResidualMode::kMomentum, false, true},
    {"AccumulateDevices", Over::kDevices, 3, 50, 0.8F, 2,
     ResidualMode::kMomentum, false, true},
    {"AccumulatePlainDevices", Over::kSomeDevices, 2, 33, 0.85F, 0,
     ResidualMode::kPlain, false, true},
    {"AccumulateNccl", Over::kNccl, 3, 50, 0.8F, 2, ResidualMode::kMomentum,
     false, true},
    {"Tcp", Over::kTcp, 2, 50, 0.85F, 2, ResidualMode::kMomentum},
    {"Rdma", Over::kRdma, 3, 50, 0.85F, 2, ResidualMode::kMomentum},
    {"Mixed", Over::kMixed, 3, 50, 0.85F, 0, ResidualMode::kMomentum},
    {"Device", Over::kDevices, 1, 40, 0.75F, 0, ResidualMode::kMomentum},
    {"Devices", Over::kDevices, 3, 50, 0.8F, 0, ResidualMode::kMomentum},
    {"PlainDevices", Over::kDevices, 2, 33, 0.85F, 3, ResidualMode::kPlain},
    {"Nccl", Over::kNccl, 3, 50, 0.8F, 2, ResidualMode::kMomentum},
    {"SomeDevices", Over::kSomeDevices, 3, 50, 0.8F, 2,
     ResidualMode::kMomentum},
    {"ChunkBeyondDevices", Over::kSomeDevices, 2, 100000, 0.5F, 0,
     ResidualMode::kPlain},
};
INSTANTIATE_TEST_SUITE_P(Settings, Sparse, ::testing::ValuesIn(kSettings),
                         [](const auto& param) {
                           return std::string(param.param.name);
                         });

// The published values, for the first of two elements; the gradient of the
// second decides which of the two is sent.
TEST(SparseGolden, FollowsThePublishedValues) {
  Job job;
  // Pool: golden, three elements of padding, other.
  job.tensors = {{"other", 1}, {"golden", 1}};
  job.options.chunk_elements = 4;
  job.options.sparsity = 0.5F;
  RunRanks(job, [](GradientSession& session) {
    Weights weights({{"other", 1}, {"golden", 1}});
    const double other[] = {10, 10, 0.5, 10, -8.5, 0};
    const std::uint8_t important[] = {1, 0, 0, 1, 0, 1};
    const double hg[] = {0, .9, 1.71, 0, .9, 0};
    const double sent[] = {0, 0, 0, 2.71, 0, 1.9};
    const double w[] = {0, 0, 0, -.271, -.271, -.7049};
    for (int step = 0; step < 6; ++step) {
      // The first step sends everything, so it must not count.
      RunStep(session, {step == 0 ? 0.0 : 1.0, 0, 0, 0, other[step]});
      ASSERT_TRUE(Update(session, kSgd, weights.pointers()).ok());
      ASSERT_EQ(session.selection()[0], important[step]) << "step " << step;
      EXPECT_NEAR(ResidualOf(session)[0], hg[step], 1e-6);
      if (important[step] != 0) {
        EXPECT_NEAR(Pool(session)[0], sent[step], 1e-6);
      }
      EXPECT_NEAR(weights.values()[1][0], w[step], 1e-6);
    }
  });
}

TEST(SparseGolden, IsDenseSgdBitForBitWhenEveryChunkIsSent) {
  std::vector<float> results[2];
  for (bool sparse : {false, true}) {
    Job job;
    job.size = 3;
    job.tensors = Tensors();
    job.options.algorithm = "two_sync";
    job.over = Over::kMessages;
    job.options.bucket_bytes = kInfiniteBytes;
    job.options.chunk_elements = 100;
    // The share is 18.8 of 19 chunks, which rounds to 19.
    job.options.sparsity = sparse ? 0.01F : 0.0F;
    RunRanks(job, [&](GradientSession& session) {
      Weights weights(Tensors());
      for (int step = 0; step < 10; ++step) {
        const Gradients g = MakeGradients(3, step);
        const StepStats stats = RunStep(session, g[session.rank()]);
        EXPECT_EQ(stats.selected_chunks, stats.chunks);
        ASSERT_TRUE(Update(session, kSgd, weights.pointers()).ok());
      }
      if (session.rank() == 0) results[sparse] = weights.Flat();
    });
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace gradientflow::testing
