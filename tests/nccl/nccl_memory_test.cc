#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "tests/nccl/nccl_suite.h"
#include "tests/nccl/nccl_trouble.h"

// Memory from NCCL, and windows through which ranks see each other's.
namespace gradientflow::testing {
namespace {

using kernels::testing::Elements;

class NcclMemory : public ::testing::Test {
 protected:
  NcclJob Job(int size) {
    NcclJob job;
    job.nccl = &nccl_;
    job.size = size;
    job.adjust = [](int, NcclArgs* args) { args->staging_bytes = 1; };
    return job;
  }
  // A sum that needs staging memory.
  static void RunStaged(NcclRank& self, std::size_t count) {
    const std::vector<Elements> inputs =
        Inputs(self.collective.size(), DType::kFloat32, count, 3);
    const DeviceMemory memory = self.Upload(inputs[self.rank]);
    CollectiveCall call =
        Call(CollectiveKind::kAllreduce, DType::kFloat32, count);
    call.wire = DType::kBFloat16;
    call.output = memory.get();
    ExpectOk(self.Run(call), call);
    Elements seen(DType::kFloat32, count);
    NcclRank::Download(memory, &seen);
    for (std::size_t i = 0; i < count; i += 13) {
      ASSERT_TRUE(IsReduced(call, inputs, i, seen, i));
    }
  }
  void ExpectAllGivenBack() {
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMisuses), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kMismatches), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kFreed),
              nccl_.Get(FakeNcclCount::kAllocated));
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kWindowsEnded),
              nccl_.Get(FakeNcclCount::kWindows));
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kDeregistered),
              nccl_.Get(FakeNcclCount::kRegistered));
  }

  FakeNccl nccl_;
};

TEST_F(NcclMemory, StagingIsAWindowOfEachCommunicator) {
  RunNcclRanks(Job(3), [&](NcclRank& self) {
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kRegistered), 0);
    RunStaged(self, 5000);
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kWindows), 3 * kChannels);
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAllocated), 3 * kChannels);
  ExpectAllGivenBack();
}

// What grows later is registered by each rank alone.
TEST_F(NcclMemory, GrownStagingIsRegistered) {
  RunNcclRanks(Job(2), [&](NcclRank& self) {
    RunStaged(self, 1200001);
    RunStaged(self, 5000);
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kWindows), 2 * kChannels);
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kRegistered), 2);
  ExpectAllGivenBack();
}

TEST_F(NcclMemory, WithoutWindowsStagingIsRegistered) {
  for (const bool asked : {true, false}) {
    FakeNccl fresh;
    nccl_.Set(FakeNcclMode::kNoWindows, asked ? 1 : 0);
    NcclJob job = Job(3);
    job.adjust = [asked](int, NcclArgs* args) {
      args->staging_bytes = 1;
      args->windows = asked;
    };
    RunNcclRanks(job, [](NcclRank& self) { RunStaged(self, 5000); });
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kWindows), 0);
    EXPECT_EQ(nccl_.Get(FakeNcclCount::kRegistered), 3 * kChannels);
    ExpectAllGivenBack();
  }
}

TEST_F(NcclMemory, AllocatedMemoryIsZeroedAndTheDevices) {
  RunNcclRanks(Job(2), [&](NcclRank& self) {
    Result<DeviceMemory> memory = self.collective.Allocate(1000);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    EXPECT_TRUE(self.device.Owns(memory.value().get()));
    for (std::size_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(memory.value().get()[i], std::byte{0}) << i;
    }
    EXPECT_TRUE(self.collective.Register(memory.value().get(), 1000).ok());
    self.collective.Deregister(memory.value().get());
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAllocated), 2 * kChannels + 2);
  ExpectAllGivenBack();
}

TEST_F(NcclMemory, LibraryThatHasNoneLeavesItToTheDevice) {
  NcclJob job = Job(1);
  job.adjust = [](int, NcclArgs* args) {
    auto old = std::make_shared<NcclApi>(*args->api);
    old->mem_alloc = nullptr;
    old->comm_window_register = nullptr;
    args->api = old;
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    Result<DeviceMemory> memory = self.collective.Allocate(1000);
    ASSERT_TRUE(memory.ok());
    EXPECT_TRUE(self.device.Owns(memory.value().get()));
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kAllocated), 0);
}

nccl::ReturnCode NoMemory(void**, std::size_t) {
  return nccl::ReturnCode::kUnhandledCudaError;
}

class Lines final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, const std::string& line) override {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }
  std::size_t Count(const std::string& text) const {
    return static_cast<std::size_t>(
        std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
          return line.find(text) != std::string::npos;
        }));
  }
  std::mutex mutex;
  std::vector<std::string> lines;
};

// Rank 1 finds none. It goes on with the device's, and no rank makes a window.
TEST_F(NcclMemory, FailureOfNcclLeavesItToTheDevice) {
  Lines logger;
  NcclJob job = Job(3);
  job.adjust = [&](int rank, NcclArgs* args) {
    args->staging_bytes = 1;
    args->logger = &logger;
    if (rank != 1) return;
    auto poor = std::make_shared<NcclApi>(*args->api);
    poor->mem_alloc = &NoMemory;
    args->api = poor;
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    RunStaged(self, 5000);
    Result<DeviceMemory> memory = self.collective.Allocate(1000);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    EXPECT_TRUE(self.device.Owns(memory.value().get()));
    RunStaged(self, 1200001);
  });
  EXPECT_EQ(nccl_.Get(FakeNcclCount::kWindows), 0);
  EXPECT_EQ(logger.Count("ncclMemAlloc of"), 1U);
  ExpectAllGivenBack();
}

// Without a way to agree, a rank alone must not do without its window.
TEST_F(NcclMemory, RanksThatCannotAgreeOnWindowsDoNotOpen) {
  NcclJob job = Job(1);
  job.adjust = [](int, NcclArgs* args) {
    args->staging_bytes = 1;
    args->all_agree = nullptr;
    auto poor = std::make_shared<NcclApi>(*args->api);
    poor->mem_alloc = &NoMemory;
    args->api = poor;
  };
  CreateNcclRanks(
      job, [](int, FakeDevice&, Result<std::unique_ptr<NcclCollective>> made) {
        EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted)
            << made.status().ToString();
      });
}

}  // namespace
}  // namespace gradientflow::testing
