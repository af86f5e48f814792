#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/session/steps.h"

// Sessions with the pool on a device: what steps on the CPU do not show.
namespace gradientflow::testing {
namespace {

// What a step must not do in the steady state.
struct Costs {
  explicit Costs(const FakeDevice& device)
      : synchronised(device.count(FakeCall::kSynchronize)),
        allocated(device.count(FakeCall::kAllocate) +
                  device.count(FakeCall::kAllocatePinned) +
                  device.count(FakeCall::kRegisterHost) +
                  device.count(FakeCall::kNewStream) +
                  device.count(FakeCall::kNewEvent)),
        pageable(device.pageable_copies()) {}
  std::uint64_t synchronised;
  std::uint64_t allocated;
  std::uint64_t pageable;
};

struct Mode {
  const char* name;
  float sparsity;
  DType wire;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }
constexpr Mode kModes[] = {{"Dense", 0, DType::kFloat32},
                           {"DenseHalf", 0, DType::kFloat16},
                           {"Sparse", 0.7F, DType::kFloat32},
                           {"SparseHalf", 0.7F, DType::kFloat16}};

class DeviceSteps : public ::testing::TestWithParam<Mode> {
 protected:
  static Job MakeJob(Over over, int size) {
    Job job;
    job.over = over;
    job.size = size;
    job.tensors = SomeTensors();
    job.options.sparsity = GetParam().sparsity;
    job.options.wire_dtype = GetParam().wire;
    job.options.chunk_elements = 1000;
    return job;
  }
};

TEST_P(DeviceSteps, NeitherWaitNorAllocateOnceTheyRun) {
  RunRanks(MakeJob(Over::kDevices, 2), [](GradientSession& session) {
    const FakeDevice& device = *DeviceOfThisRank();
    for (int step = 0; step < 4; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
    }
    const Costs before(device);
    for (int step = 4; step < 9; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
    }
    const Costs after(device);
    EXPECT_EQ(after.synchronised, before.synchronised);
    EXPECT_EQ(after.allocated, before.allocated);
    EXPECT_EQ(after.pageable, before.pageable);
  });
}

TEST_P(DeviceSteps, KeepTheirStreamIfAnotherDevicesIsRefused) {
  FakeDevice other;
  const auto foreign = other.NewStream(false).value();
  RunRanks(MakeJob(Over::kDevices, 2), [&](GradientSession& session) {
    for (const Status& refused :
         {session.SetStream(foreign->native()),
          session.communicator().SetStream(foreign->native())}) {
      ASSERT_FALSE(refused.ok());
      EXPECT_NE(refused.message().find("SetStream(): fake:"), std::string::npos)
          << refused.message();
    }
    for (int step = 0; step < 3; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
    }
  });
}

TEST_P(DeviceSteps, LetHooksReturnWhileTheDeviceIsBusy) {
  RunRanks(MakeJob(Over::kDevices, 2), [](GradientSession& session) {
    FakeDevice& device = *DeviceOfThisRank();
    for (int step = 0; step < 3; ++step) {
      device.HoldStreams();
      ProduceAll(session, step);  // Would never return if it waited.
      std::thread device_goes_on([&] { device.ReleaseStreams(); });
      const Result<StepStats> stats = session.FinishStep();
      device_goes_on.join();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    }
  });
}

TEST_P(DeviceSteps, EndOnAllRanksWhenADeviceFails) {
  RunRanks(MakeJob(Over::kDevices, 3), [](GradientSession& session) {
    // A peer may be one step behind when it learns of the failure.
    Result<StepStats> finished = StepStats();
    for (int step = 0; finished.ok() && step < 4; ++step) {
      if (step == 1 && session.rank() == 1) {
        DeviceOfThisRank()->FailWork(
            0, Status(StatusCode::kInternal, "an illegal address"));
      }
      ProduceAll(session, step);
      finished = session.FinishStep();
    }
    ASSERT_FALSE(finished.ok());
    EXPECT_NE(finished.status().message().find("illegal address"),
              std::string::npos)
        << finished.status().message();
  });
}

TEST_P(DeviceSteps, EndOnAllRanksWhenALaunchFails) {
  RunRanks(MakeJob(Over::kDevices, 2), [](GradientSession& session) {
    // A peer may be one step behind when it learns of the failure.
    Result<StepStats> finished = StepStats();
    for (int step = 0; finished.ok() && step < 4; ++step) {
      if (step == 1 && session.rank() == 1) {
        DeviceOfThisRank()->FailCall(FakeCall::kCopy, 0,
                                     Status(StatusCode::kInternal, "no copy"));
      }
      ProduceAll(session, step);
      finished = session.FinishStep();
    }
    ASSERT_FALSE(finished.ok());
    EXPECT_NE(finished.status().message().find("no copy"), std::string::npos)
        << finished.status().message();
  });
}

// As a stream that is being captured does.
TEST_P(DeviceSteps, GoOnAfterAStreamHasRefusedTheOptimizer) {
  RunRanks(MakeJob(Over::kDevices, 2), [](GradientSession& session) {
    std::vector<std::vector<float>> weights;
    std::vector<float*> pointers;
    for (const TensorSpec& tensor : SomeTensors()) {
      weights.emplace_back(tensor.elements, 1.0F);
    }
    for (std::vector<float>& one : weights) pointers.push_back(one.data());
    const auto start = weights;
    for (int step = 0; step < 2; ++step) {
      ProduceAll(session, step);
      ASSERT_TRUE(session.FinishStep().ok());
      if (step == 0 && session.rank() == 1) {
        DeviceOfThisRank()->FailCall(
            FakeCall::kWait, 0,
            Status(StatusCode::kFailedPrecondition, "captured"));
        EXPECT_EQ(session.OptimizerStep({}, pointers).code(),
                  StatusCode::kFailedPrecondition);
        EXPECT_EQ(weights, start);
      }
      const Status updated = session.OptimizerStep({}, pointers);
      EXPECT_TRUE(updated.ok()) << updated.message();
      // The device finishes the update before the gradients are written again.
      ASSERT_TRUE(session.SaveState().ok());
      EXPECT_NE(weights, start);
    }
  });
}

// Ranks whose pools are on the host and on devices.
TEST_P(DeviceSteps, GiveTheSameBitsOnEveryKindOfRank) {
  std::mutex mutex;
  std::vector<std::vector<float>> pools;
  std::vector<std::vector<std::uint8_t>> selections;
  for (int step_count : {1, 5}) {
    pools.clear();
    selections.clear();
    RunRanks(MakeJob(Over::kSomeDevices, 3), [&](GradientSession& session) {
      for (int step = 0; step < step_count; ++step) {
        ProduceAll(session, step);
        ASSERT_TRUE(session.FinishStep().ok());
      }
      std::vector<float> sent;
      const std::vector<std::uint8_t> selection = session.selection();
      const auto* pool = reinterpret_cast<const float*>(session.pool().data);
      for (std::size_t i = 0; i < session.pool().bytes / sizeof(float); ++i) {
        if (selection.empty() || selection[i / 1000] != 0) {
          sent.push_back(pool[i]);
        }
      }
      const std::lock_guard<std::mutex> lock(mutex);
      pools.push_back(sent);
      selections.push_back(selection);
    });
    for (const auto& pool : pools) {
      ASSERT_EQ(pool.size(), pools[0].size());
      EXPECT_EQ(std::memcmp(pool.data(), pools[0].data(),
                            pool.size() * sizeof(float)),
                0);
    }
    for (const auto& selection : selections) {
      EXPECT_EQ(selection, selections[0]);
    }
  }
}

// An inf skips the update on all ranks, and does no harm afterwards.
TEST_P(DeviceSteps, SkipTheUpdateOfANonfiniteStep) {
  Job job = MakeJob(Over::kSomeDevices, 2);
  job.weights_on_host = true;
  RunRanks(job, [](GradientSession& session) {
    std::vector<std::vector<float>> weights;
    std::vector<float*> pointers;
    for (std::size_t i = 0; i < session.tensors(); ++i) {
      weights.emplace_back(session.gradient(i).bytes / sizeof(float), 1.0F);
    }
    for (auto& tensor : weights) pointers.push_back(tensor.data());
    for (int step = 0; step < 7; ++step) {
      for (std::size_t i = session.tensors(); i-- > 0;) {
        Fill(session, i, step);
        if (step == 2 && i == 3 && session.rank() == 1) {
          Floats(session, i).back() = std::numeric_limits<float>::infinity();
        }
        session.GradientReady(i);
      }
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_TRUE(stats.ok()) << stats.status().ToString();
      if (step < 2 || step == 6) {
        EXPECT_FALSE(stats.value().nonfinite) << step;
      }
      const auto before = weights;
      ASSERT_TRUE(Update(session, {}, pointers).ok());
      EXPECT_EQ(weights == before, stats.value().nonfinite) << step;
      if (step == 2) {
        EXPECT_TRUE(stats.value().nonfinite);
      }
    }
  });
}

// Steps end well, or with an error, if a rank closes between two of them.
TEST(DeviceRanks, EndAStepThatARankDoesNotMake) {
  for (const Over over : {Over::kDevices, Over::kSomeDevices, Over::kNccl}) {
    Job job;
    job.over = over;
    job.size = 2;
    job.tensors = SomeTensors();
    RunRanks(job, [](GradientSession& session) {
      ProduceAll(session, 0);
      FinishAndCheck(session, 0);
      if (session.rank() == 1) return;
      ProduceAll(session, 1);
      const Result<StepStats> stats = session.FinishStep();
      ASSERT_FALSE(stats.ok());
      EXPECT_NE(stats.status().message().find("rank 1"), std::string::npos)
          << stats.status().ToString();
    });
  }
}

// Norms are summed in the same order on both kinds of rank.
TEST(MixedRanks, UpdateByLarsToTheSameBits) {
  for (const Mode& mode : kModes) {
    Job job;
    job.over = Over::kSomeDevices;
    job.size = 3;
    job.tensors = SomeTensors();
    job.tensors.push_back({"large", 70001});
    job.tensors[1].skip_lars = true;
    job.weights_on_host = true;
    job.options.sparsity = mode.sparsity;
    job.options.wire_dtype = mode.wire;
    job.options.chunk_elements = 1000;
    std::vector<std::vector<float>> ends[3];
    RunRanks(job, [&](GradientSession& session) {
      std::vector<std::vector<float>> weights;
      std::vector<float*> pointers;
      std::mt19937 random(7);
      for (const TensorSpec& tensor : job.tensors) {
        weights.emplace_back(tensor.elements);
        for (float& w : weights.back()) {
          w = std::normal_distribution<float>()(random);
        }
        pointers.push_back(weights.back().data());
      }
      OptimizerOptions lars;
      lars.kind = OptimizerOptions::Kind::kLars;
      lars.weight_decay = 1e-3F;
      for (int step = 0; step < 4; ++step) {
        ProduceAll(session, step);
        ASSERT_TRUE(session.FinishStep().ok());
        ASSERT_TRUE(Update(session, lars, pointers).ok());
      }
      ends[session.rank()] = weights;
    });
    EXPECT_TRUE(ends[0] == ends[1]) << mode.name;
    EXPECT_TRUE(ends[0] == ends[2]) << mode.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, DeviceSteps, ::testing::ValuesIn(kModes),
                         [](const auto& mode) {
                           return std::string(mode.param.name);
                         });

}  // namespace
}  // namespace gradientflow::testing
