#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/nccl/nccl_collective.h"
#include "tests/nccl/nccl_ranks.h"
#include "tests/session/steps.h"

// Steps that are submitted ahead of their results, on a device with NCCL: what
// the host does meanwhile, and what it learns when.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kChunk = 1000;
// A result is looked for after a second even if nobody wants it.
constexpr std::chrono::milliseconds kUndisturbed(900);

struct Mode {
  const char* name;
  float sparsity;
  DType wire;
  OptimizerOptions::Kind optimizer = OptimizerOptions::Kind::kSgd;
  bool zero_kept = false;  // As PyTorch's DataParallel has it.
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }
constexpr Mode kModes[] = {
    {"Dense", 0, DType::kFloat32},
    {"DenseHalf", 0, DType::kFloat16},
    {"Sparse", 0.7F, DType::kFloat32},
    {"SparseHalf", 0.7F, DType::kFloat16},
    {"SparseLars", 0.7F, DType::kFloat16, OptimizerOptions::Kind::kLars},
    {"SparseZero", 0.7F, DType::kFloat16, OptimizerOptions::Kind::kSgd, true}};
constexpr int kDenseModes = 2;  // The first ones; zero_kept comes last.

// What a rank has asked of its device so far.
struct Costs {
  explicit Costs(const FakeDevice& device)
      : looks(device.count(FakeCall::kQuery) +
              device.count(FakeCall::kSynchronize)),
        allocated(device.count(FakeCall::kAllocate) +
                  device.count(FakeCall::kAllocatePinned) +
                  device.count(FakeCall::kRegisterHost) +
                  device.count(FakeCall::kNewStream) +
                  device.count(FakeCall::kNewEvent)),
        launched(device.count(FakeCall::kLaunch)),
        pageable(device.pageable_copies()) {}
  std::uint64_t looks;
  std::uint64_t allocated;
  std::uint64_t launched;
  std::uint64_t pageable;
};

// Float32 weights in the device's memory, all 1 at first.
struct Weights {
  explicit Weights(const GradientSession& session) {
    for (std::size_t i = 0; i < session.tensors(); ++i) {
      const std::size_t count = Floats(session, i).size();
      memory.push_back(
          DeviceOfThisRank()->Allocate(count * sizeof(float)).value());
      pointers.push_back(reinterpret_cast<float*>(memory.back().get()));
      std::fill_n(pointers.back(), count, 1.0F);
      counts.push_back(count);
    }
  }
  std::vector<float> Values() const {
    EXPECT_TRUE(StreamOfThisRank()->Synchronize().ok());
    std::vector<float> values;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      values.insert(values.end(), pointers[i], pointers[i] + counts[i]);
    }
    return values;
  }
  std::vector<DeviceMemory> memory;
  std::vector<float*> pointers;
  std::vector<std::size_t> counts;
};

class Ahead : public ::testing::TestWithParam<Mode> {
 protected:
  static Job MakeJob(int size = 2) {
    Job job;
    job.over = Over::kNccl;
    job.size = size;
    job.tensors = SomeTensors();
    job.options.sparsity = GetParam().sparsity;
    job.options.wire_dtype = GetParam().wire;
    job.options.zero_kept = GetParam().zero_kept;
    job.options.chunk_elements = kChunk;
    job.options.bucket_bytes = std::size_t{8} << 10;
    job.options.momentum = 0.9F;
    return job;
  }
  static OptimizerOptions Config() {
    OptimizerOptions config;
    config.kind = GetParam().optimizer;
    config.momentum = 0.9F;
    return config;
  }
};

// With CSC; and where what is kept back reads as zero.
class AheadCsc : public Ahead {};
class AheadZero : public Ahead {};

// The test's own look.
void AwaitStream() { ASSERT_TRUE(StreamOfThisRank()->Synchronize().ok()); }

TEST_P(Ahead, AStepNeitherWaitsNorAllocatesAndLooksOnceAfterwards) {
  RunRanks(MakeJob(), [&](GradientSession& session) {
    FakeDevice& device = *DeviceOfThisRank();
    const Weights weights(session);
    int undisturbed = 0;
    for (int step = 0; step < 12; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      const Costs before(device);
      // Nothing moves on the device from here on; what is done is done.
      device.HoldStreams();
      ProduceAll(session, step);
      const Result<AsyncStep> left = session.FinishStepAsync();
      ASSERT_TRUE(left.ok()) << left.status().ToString();
      EXPECT_NE(left.value().event, nullptr);
      ASSERT_TRUE(session.OptimizerStep(Config(), weights.pointers).ok());
      const Costs after(device);
      device.ReleaseStreams();
      AwaitStream();
      if (std::chrono::steady_clock::now() - begin > kUndisturbed) continue;
      ++undisturbed;
      // The one look is for the result of the step before.
      EXPECT_EQ(after.looks - before.looks, step == 0 ? 0U : 1U) << step;
      // The optimiser's own memory comes with its first step.
      if (step > 0) {
        EXPECT_EQ(after.allocated, before.allocated) << step;
      }
      EXPECT_EQ(after.pageable, before.pageable) << step;
    }
    EXPECT_GT(undisturbed, 1);
  });
}

// The pool, and what CSC sends instead of it: packed chunks and norms. (The
// staging memory of each communicator is a window.)
TEST_P(Ahead, WhatIsSentIsOfNcclAndRegisteredOnce) {
  const int buffers = GetParam().sparsity > 0 ? 3 : 1;
  RunRanks(MakeJob(), [&](GradientSession& session) {
    ProduceAll(session, 0);
    ASSERT_TRUE(session.FinishStep().ok());
    const FakeNccl& nccl = *NcclOfRanks();
    EXPECT_EQ(nccl.Get(FakeNcclCount::kRegistered), 2 * kChannels * buffers);
    EXPECT_EQ(nccl.Get(FakeNcclCount::kAllocated), 2 * (kChannels + buffers));
    // Nobody closes before all have looked.
    ProduceAll(session, 1);
    ASSERT_TRUE(session.FinishStep().ok());
  });
}

TEST_P(AheadCsc, LaunchesDoNotDependOnTheNumberOfTensors) {
  for (const int times : {1, 20}) {
    Job job = MakeJob();
    const std::vector<TensorSpec> some = job.tensors;
    for (int i = 1; i < times; ++i) {
      for (TensorSpec tensor : some) {
        tensor.name += "_" + std::to_string(i);
        job.tensors.push_back(tensor);
      }
    }
    RunRanks(job, [&](GradientSession& session) {
      FakeDevice& device = *DeviceOfThisRank();
      const Weights weights(session);
      std::uint64_t launched = 0;  // In the step before.
      for (int step = 0; step < 5; ++step) {
        const Costs before(device);
        ProduceAll(session, step);
        const Result<AsyncStep> left = session.FinishStepAsync();
        ASSERT_TRUE(left.ok()) << left.status().ToString();
        ASSERT_TRUE(session.OptimizerStep(Config(), weights.pointers).ok());
        if (left.value().known) {
          EXPECT_LE(launched, 2 * left.value().known->buckets + 6) << step;
        }
        launched = Costs(device).launched - before.launched;
        AwaitStream();
      }
    });
  }
}

struct Passes {
  DType pool;
  DType wire;
  int size;
  std::uint64_t per_bucket;
};

// Beside NCCL a dense step converts before the wire and after it, and the
// second pass looks for infinities. If nothing converts, a pass looks for them,
// unless we add up 16-bit elements ourselves: then the kernel that does so
// looks.
TEST(AheadDense, PassesOverThePool) {
  constexpr DType kFloat = DType::kFloat32;
  constexpr DType kHalf = DType::kFloat16;
  for (const Passes& passes :
       {Passes{kFloat, kHalf, 2, 2}, Passes{kFloat, kHalf, 3, 2 + 1},
        Passes{kHalf, kHalf, 2, 1}, Passes{kHalf, kHalf, 3, 1},
        Passes{kFloat, kFloat, 2, 1}, Passes{kFloat, kFloat, 3, 1}}) {
    Job job;
    job.over = Over::kNccl;
    job.size = passes.size;
    job.tensors = SomeTensors();
    job.options.pool_dtype = passes.pool;
    job.options.wire_dtype = passes.wire;
    job.options.bucket_bytes = std::size_t{8} << 10;
    RunRanks(job, [&](GradientSession& session) {
      const FakeDevice& device = *DeviceOfThisRank();
      std::uint64_t launched = 0;  // In the step before.
      for (int step = 0; step < 4; ++step) {
        const Costs before(device);
        for (std::size_t i = session.tensors(); i-- > 0;) {
          session.GradientReady(i);
        }
        const Result<AsyncStep> left = session.FinishStepAsync();
        ASSERT_TRUE(left.ok()) << left.status().ToString();
        if (left.value().known) {
          const std::uint64_t buckets = left.value().known->buckets;
          EXPECT_GT(buckets, 1U);
          EXPECT_EQ(launched, passes.per_bucket * buckets)
              << Name(passes.pool) << " as " << Name(passes.wire) << ", "
              << passes.size << " ranks";
        }
        launched = Costs(device).launched - before.launched;
        AwaitStream();
      }
    });
  }
}

// The same training in both ways, with a step that has an infinity.
TEST_P(Ahead, TrainsToTheBitsOfFinishStep) {
  constexpr int kSteps = 9;
  std::vector<float> ends[2][2];
  for (const bool ahead : {false, true}) {
    RunRanks(MakeJob(), [&](GradientSession& session) {
      const Weights weights(session);
      std::uint64_t skipped = 0;
      const auto take = [&](const StepStats& stats) {
        if (!stats.nonfinite) return;
        ++skipped;
        EXPECT_GE(stats.step, 3U);
      };
      for (int step = 0; step < kSteps; ++step) {
        AwaitStream();
        for (std::size_t i = session.tensors(); i-- > 0;) {
          Fill(session, i, step);
          if (step == 3 && i == 5 && session.rank() == 1) {
            Floats(session, i).back() = std::numeric_limits<float>::infinity();
          }
          session.GradientReady(i);
        }
        if (ahead) {
          const Result<AsyncStep> left = session.FinishStepAsync();
          ASSERT_TRUE(left.ok()) << left.status().ToString();
          EXPECT_EQ(left.value().step, static_cast<std::uint64_t>(step));
          ASSERT_EQ(left.value().known.has_value(), step > 0);
          if (step > 0) {
            EXPECT_EQ(left.value().known->step,
                      static_cast<std::uint64_t>(step - 1));
            EXPECT_GT(left.value().known->bytes_sent, 0U);
            take(*left.value().known);
          }
        } else {
          const Result<StepStats> stats = session.FinishStep();
          ASSERT_TRUE(stats.ok()) << stats.status().ToString();
          take(stats.value());
        }
        ASSERT_TRUE(session.OptimizerStep(Config(), weights.pointers).ok());
      }
      EXPECT_GT(skipped, 0U);
      ends[ahead ? 1 : 0][session.rank()] = weights.Values();
    });
  }
  EXPECT_TRUE(ends[0][0] == ends[1][0]);
  EXPECT_TRUE(ends[1][0] == ends[1][1]);
}

TEST_P(Ahead, GradientsAreThereForTheStreamWhenItReturns) {
  RunRanks(MakeJob(3), [&](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStepAsync().ok());
      AwaitStream();
      const std::vector<std::uint8_t> sent = session.selection();
      if (!sent.empty() && step > 0) continue;
      for (std::size_t i = 0; i < session.tensors(); ++i) {
        ExpectMean(
            session, i, step, [](int) { return true; }, 1e-3);
      }
    }
  });
}

// Frameworks look for infinities in gradients, before any host knows whether
// the step was finite. They find the infinity of one rank on all, also if that
// rank kept it back. The padding between tensors stays zero, or the next step
// would not be finite either.
TEST_P(AheadZero, GradientsTellOfASkippedStepWithoutTheHost) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    const auto* pool = reinterpret_cast<const float*>(session.pool().data);
    const std::size_t n = session.pool().bytes / sizeof(float);
    std::vector<bool> in_tensor(n);
    for (std::size_t i = 0; i < session.tensors(); ++i) {
      for (const float& value : Floats(session, i)) {
        in_tensor[static_cast<std::size_t>(&value - pool)] = true;
      }
    }
    ASSERT_GT(std::count(in_tensor.begin(), in_tensor.end(), false), 0);
    for (int step = 0; step < 8; ++step) {
      for (std::size_t i = session.tensors(); i-- > 0;) Fill(session, i, step);
      const bool bad = step % 2 == 1;
      if (bad && session.rank() == 1) {
        // In another tensor each time, so also in chunks that are kept back.
        std::span<float> some = Floats(session, static_cast<std::size_t>(step));
        if (some.empty()) some = Floats(session, 0);
        some.back() = std::numeric_limits<float>::infinity();
      }
      for (std::size_t i = session.tensors(); i-- > 0;) {
        session.GradientReady(i);
      }
      ASSERT_TRUE(session.FinishStepAsync().ok());
      AwaitStream();
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::isnan(pool[i]), bad && in_tensor[i]) << step;
        if (!in_tensor[i]) {
          ASSERT_EQ(pool[i], 0) << step;
        }
      }
    }
  });
}

TEST_P(Ahead, AFailureOfTheDeviceComesWithTheNextStepOnAllRanks) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    Status failed;
    for (int step = 0; failed.ok() && step < 5; ++step) {
      if (step == 2 && session.rank() == 1) {
        DeviceOfThisRank()->FailWork(
            0, Status(StatusCode::kInternal, "an illegal address"));
      }
      ProduceAll(session, step);
      failed = session.FinishStepAsync().status();
      (void)StreamOfThisRank()->Synchronize();
    }
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.message().find("illegal address"), std::string::npos)
        << failed.message();
    EXPECT_EQ(session.FinishStep().status().message(), failed.message());
    EXPECT_FALSE(session.SaveState().ok());
  });
}

TEST_P(Ahead, StateIsThatOfTheFinishedStep) {
  std::vector<std::byte> states[2];
  for (const bool ahead : {false, true}) {
    RunRanks(MakeJob(), [&](GradientSession& session) {
      for (int step = 0; step < 3; ++step) {
        AwaitStream();
        ProduceAll(session, step);
        if (ahead) {
          ASSERT_TRUE(session.FinishStepAsync().ok());
        } else {
          ASSERT_TRUE(session.FinishStep().ok());
        }
      }
      const Result<std::vector<std::byte>> state = session.SaveState();
      ASSERT_TRUE(state.ok()) << state.status().ToString();
      if (session.rank() == 0) states[ahead ? 1 : 0] = state.value();
    });
  }
  EXPECT_EQ(states[0].size(), states[1].size());
}

std::string NameOf(const ::testing::TestParamInfo<Mode>& mode) {
  return mode.param.name;
}
INSTANTIATE_TEST_SUITE_P(Modes, Ahead, ::testing::ValuesIn(kModes), NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, AheadCsc,
                         ::testing::ValuesIn(std::begin(kModes) + kDenseModes,
                                             std::end(kModes)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Modes, AheadZero,
                         ::testing::Values(kModes[std::size(kModes) - 1]),
                         NameOf);

}  // namespace
}  // namespace gradientflow::testing
