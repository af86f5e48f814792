#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gradientflow/session/state_file.h"
#include "tests/session/ranks.h"

// Threads share the passes over a large pool. The bits of a training run depend
// neither on how many there are, nor on where the residual is.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;

struct Run {
  int compute_threads = 1;
  DType type = DType::kFloat32;
  OptimizerOptions::Kind optimizer = OptimizerOptions::Kind::kSgd;
  bool accumulate = false;  // Only with float32.
};

// A bit pattern of a number between 1e-5 and 1 or so, of either sign.
std::uint32_t RandomNumber(std::mt19937& random, std::size_t bytes) {
  const auto bits = static_cast<std::uint32_t>(random());
  return bytes == 2 ? bits & 0xBBFFU : (bits & 0x83FFFFFFU) | 0x3B000000U;
}

// Gradients of one rank in one step; an infinity in step 2 of rank 1.
void FillPool(GradientSession& session, int step) {
  const BufferView pool = session.pool();
  const std::size_t bytes = SizeOf(session.options().pool_dtype);
  std::mt19937 random(static_cast<unsigned>(step * 2 + session.rank()));
  for (std::size_t i = 0; i < pool.bytes; i += bytes) {
    std::uint32_t number = RandomNumber(random, bytes);
    if (step == 2 && session.rank() == 1 && i == 40000 * bytes) {
      number = bytes == 2 ? 0x7C00U : 0x7F800000U;
    }
    if (session.options().accumulate) {
      float sum[2] = {};
      std::memcpy(&sum[0], pool.data + i, sizeof(float));
      std::memcpy(&sum[1], &number, sizeof(float));
      sum[0] += sum[1];
      std::memcpy(&number, &sum[0], sizeof(float));
    }
    std::memcpy(pool.data + i, &number, bytes);
  }
}

// The residuals, momenta and weights of two ranks after some steps, of which
// one is skipped and one has a new loss scale.
std::vector<Bytes> Train(const Run& run) {
  Job job;
  job.size = 2;
  job.tensors = {{"a", 150001}, {"b", 7}, {"c", 120000}, {"d", 31000}};
  job.options.pool_dtype = run.type;
  job.options.wire_dtype = DType::kFloat16;
  job.options.bucket_bytes = 64 << 10;
  job.options.algorithm = "two_sync";
  job.options.sparsity = 0.7F;
  job.options.chunk_elements = 3001;
  job.options.compute_threads = run.compute_threads;
  job.options.accumulate = run.accumulate;
  const OptimizerOptions optimizer = {
      .kind = run.optimizer, .lr = 0.1F, .momentum = 0.9F};
  std::vector<Bytes> ends(2);
  RunRanks(job, [&](GradientSession& session) {
    std::vector<std::vector<float>> weights;
    std::vector<float*> pointers;
    for (const TensorSpec& spec : job.tensors) {
      weights.emplace_back(spec.elements, 0.5F);
    }
    for (auto& tensor : weights) pointers.push_back(tensor.data());
    for (int step = 0; step < 5; ++step) {
      EXPECT_TRUE(session.SetLossScale(step < 3 ? 1 : 8).ok());
      FillPool(session, step);
      for (std::size_t t = session.tensors(); t-- > 0;) {
        session.GradientReady(t);
      }
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      EXPECT_EQ(stats.value().nonfinite, step == 2);
      ASSERT_TRUE(Update(session, optimizer, pointers).ok());
      ASSERT_TRUE(session.ZeroGradients().ok());
    }
    const Bytes saved = session.SaveState().value();
    const SavedState state = ReadState(saved).value();
    Bytes& end = ends[static_cast<std::size_t>(session.rank())];
    for (const auto& part : {state.selection, state.residual, state.momentum}) {
      end.insert(end.end(), part.begin(), part.end());
    }
    for (const auto& tensor : weights) {
      const auto bytes = std::as_bytes(std::span(tensor));
      end.insert(end.end(), bytes.begin(), bytes.end());
    }
  });
  return ends;
}

TEST(SparseThreads, GiveTheSameBitsInAnyNumber) {
  using Kind = OptimizerOptions::Kind;
  for (const auto& [type, kind] : {std::pair(DType::kFloat32, Kind::kSgd),
                                   std::pair(DType::kFloat16, Kind::kLars)}) {
    const std::vector<Bytes> alone = Train({1, type, kind});
    for (int threads : {2, 5}) {
      EXPECT_TRUE(Train({threads, type, kind}) == alone)
          << Name(type) << ", " << threads << " threads";
    }
  }
}

TEST(SparseThreads, GiveTheSameBitsWithTheResidualInThePool) {
  EXPECT_TRUE(Train({.compute_threads = 3, .accumulate = true}) == Train({}));
}

}  // namespace
}  // namespace gradientflow::testing
