#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/session/state_file.h"
#include "tests/optimizer/sgd_oracle.h"
#include "tests/session/steps.h"

// What lies between the tensors of a pool: it stays zero, and nothing depends
// on it, whatever the sizes of the tensors and wherever the pool is.
namespace gradientflow::testing {
namespace {

// Calls visit(i) for the elements of the pool that belong to no tensor.
template <typename Visit>
void ForPadding(const GradientSession& session, Visit visit) {
  const std::size_t width = SizeOf(session.options().pool_dtype);
  std::vector<bool> taken(session.pool().bytes / width);
  for (std::size_t t = 0; t < session.tensors(); ++t) {
    const std::size_t count = session.gradient(t).bytes / width;
    for (std::size_t i = 0; i < count; ++i) {
      taken[session.pool_offset(t) + i] = true;
    }
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i]) visit(i);
  }
}

std::vector<float> FloatsOf(std::span<const std::byte> bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

struct Mode {
  const char* name;
  DType pool = DType::kFloat32;
  DType wire = DType::kFloat32;
  float sparsity = 0;
  ResidualMode residual = ResidualMode::kMomentum;
  bool accumulate = false;
};
constexpr Mode kModes[] = {
    {"dense"},
    {"dense, 16-bit wire", DType::kFloat32, DType::kFloat16},
    {"dense, 16-bit pool", DType::kBFloat16, DType::kBFloat16},
    {"sparse", DType::kFloat32, DType::kFloat16, 0.6F},
    {"sparse, 16-bit pool", DType::kFloat16, DType::kFloat16, 0.6F,
     ResidualMode::kPlain},
    {"accumulate", DType::kFloat32, DType::kFloat32, 0.6F,
     ResidualMode::kMomentum, true},
};

class Padding : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static Job MakeJob() {
    Job job;
    std::tie(job.over, job.size) = GetParam();
    job.options.segment_bytes = 4096;
    job.options.bucket_bytes = 700;
    job.weights_on_host = true;
    return job;
  }
  // Empty tensors, single elements and primes among others.
  static std::vector<std::size_t> RandomSizes(std::mt19937& random) {
    static constexpr std::size_t kSome[] = {0, 1, 2, 3, 7, 13, 127, 1009};
    std::vector<std::size_t> sizes(8 + random() % 6);
    for (std::size_t& size : sizes) {
      size = random() % 2 == 0 ? kSome[random() % 8] : random() % 300;
    }
    return sizes;
  }
  static std::vector<TensorSpec> Specs(const std::vector<std::size_t>& sizes) {
    std::vector<TensorSpec> specs;
    for (const std::size_t size : sizes) specs.push_back({"", size});
    return specs;
  }
};

// 1 in whatever 16-bit or 32-bit type the pool has.
void FillWithOnes(GradientSession& session) {
  const DType type = session.options().pool_dtype;
  const std::size_t width = SizeOf(type);
  const std::uint32_t one = type == DType::kFloat32   ? 0x3F800000U
                            : type == DType::kFloat16 ? 0x3C00U
                                                      : 0x3F80U;
  for (std::size_t t = session.tensors(); t-- > 0;) {
    const BufferView view = session.gradient(t);
    for (std::size_t at = 0; at < view.bytes; at += width) {
      std::memcpy(view.data + at, &one, width);
    }
    session.GradientReady(t);
  }
}

void ExpectZeroPadding(GradientSession& session, const char* mode) {
  const std::size_t width = SizeOf(session.options().pool_dtype);
  const std::vector<std::byte> saved = session.SaveState().value();
  const SavedState state = ReadState(saved).value();
  const std::vector<float> residual = FloatsOf(state.residual);
  const std::vector<float> momentum = FloatsOf(state.momentum);
  ASSERT_EQ(momentum.size(), session.pool().bytes / width);
  std::size_t count = 0;
  ForPadding(session, [&](std::size_t i) {
    ++count;
    std::uint32_t bits = 0;
    std::memcpy(&bits, session.pool().data + i * width, width);
    EXPECT_EQ(bits, 0U) << mode << ", element " << i;
    EXPECT_EQ(momentum[i], 0.0F) << mode << ", element " << i;
    if (!residual.empty()) {
      EXPECT_EQ(residual[i], 0.0F) << mode << ", element " << i;
    }
  });
  EXPECT_GT(count, 0U) << "nothing was tested";
}

TEST_P(Padding, StaysZeroWhateverIsSent) {
  for (const Mode& mode : kModes) {
    Job job = MakeJob();
    job.tensors = Specs({10, 0, 97, 1, 500, 3});
    job.options.pool_dtype = mode.pool;
    job.options.wire_dtype = mode.wire;
    job.options.sparsity = mode.sparsity;
    job.options.residual = mode.residual;
    job.options.accumulate = mode.accumulate;
    job.options.chunk_elements = 17;
    job.options.loss_scale = 2;
    RunRanks(job, [&](GradientSession& session) {
      std::vector<std::vector<float>> weights;
      std::vector<float*> pointers;
      for (const TensorSpec& spec : job.tensors) {
        weights.emplace_back(spec.elements, 1.0F);
      }
      for (auto& tensor : weights) pointers.push_back(tensor.data());
      for (int step = 0; step < 4; ++step) {
        FillWithOnes(session);
        const Result<StepStats> stats = session.FinishStep();
        ASSERT_TRUE(stats.ok()) << stats.status().ToString();
        ASSERT_FALSE(stats.value().nonfinite);
        ASSERT_TRUE(Update(session, {}, pointers).ok());
        ASSERT_TRUE(ZeroAndWait(session).ok());
      }
      ExpectZeroPadding(session, mode.name);
    });
    if (HasFailure()) return;
  }
}

// The mean and LARS, whose norms are those of whole tensors, in float64.
TEST_P(Padding, ChangesNoResultOfTensorsOfAnySize) {
  std::mt19937 random(19);
  for (int round = 0; round < 4; ++round) {
    const std::vector<std::size_t> sizes = RandomSizes(random);
    const PoolLayout layout = PoolLayout::Aligned(sizes, sizeof(float)).value();
    const std::mt19937 of_weights(static_cast<unsigned>(round));
    Job job = MakeJob();
    job.tensors = Specs(sizes);
    const OptimizerOptions lars = {.kind = OptimizerOptions::Kind::kLars,
                                   .lr = 0.1F,
                                   .weight_decay = 0.01F,
                                   .lars_eta = 0.5F};
    RunRanks(job, [&](GradientSession& session) {
      std::mt19937 mine = of_weights;
      Weights weights(layout, mine);
      SgdOracle oracle(layout, weights);
      const std::vector<bool> all(layout.elements(), true);
      for (int step = 0; step < 3; ++step) {
        ProduceAll(session, step);
        FinishAndCheck(session, step, 1e-6);
        std::vector<float> means(layout.elements());
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          ASSERT_EQ(session.pool_offset(t), layout.offset(t));
          const std::span<float> mean = Floats(session, t);
          std::copy(
              mean.begin(), mean.end(),
              means.begin() + static_cast<std::ptrdiff_t>(layout.offset(t)));
        }
        ASSERT_TRUE(Update(session, lars, weights.pointers()).ok());
        oracle.Update(lars, means, all);
      }
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        for (std::size_t e = 0; e < sizes[t]; ++e) {
          ASSERT_NEAR(weights[t][e], oracle.weights[t][e],
                      2e-6 * (1 + std::fabs(oracle.weights[t][e])))
              << "round " << round << ", tensor " << t << " of " << sizes[t];
        }
      }
    });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(InProcess, Padding,
                         ::testing::Values(std::tuple{Over::kMemory, 1},
                                           std::tuple{Over::kMemory, 3},
                                           std::tuple{Over::kMessages, 2},
                                           std::tuple{Over::kDevices, 2},
                                           std::tuple{Over::kNccl, 3}),
                         ParamName);

TEST(StateOfAnotherLayout, IsRefusedAndSaysSo) {
  Job job;
  job.tensors = SomeTensors();
  RunRanks(job, [](GradientSession& session) {
    const std::vector<std::byte> saved = session.SaveState().value();
    SavedState state = ReadState(saved).value();
    std::string settings(state.settings);
    constexpr std::string_view kLine = "tensors begin at multiples of=32 ";
    const std::size_t at = settings.find(kLine);
    ASSERT_NE(at, std::string::npos) << settings;
    settings.replace(at, kLine.size(), "tensors begin at multiples of=1 ");
    state.settings = settings;
    const Status status = session.RestoreState(WriteState(state));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(
                  "expected \"tensors begin at multiples of=32 elements\", "
                  "seen \"tensors begin at multiples of=1 elements\""),
              std::string::npos)
        << status.message();
    EXPECT_TRUE(session.RestoreState(saved).ok());
  });
}

}  // namespace
}  // namespace gradientflow::testing
