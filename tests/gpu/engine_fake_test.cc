#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_facts.h"
#include "nlohmann/json.hpp"
#include "tests/device/fake_device.h"
#include "tests/nccl/nccl_ranks.h"

// benchmarks/gpu:engine as it is, on a fake device with the fake NCCL: its
// steps are checked, and its rows are those of a GPU, but for their times.
int EngineMain(int argc, char** argv);

namespace gradientflow {

CudaFacts ReadCudaFacts() { return {}; }
int CudaDeviceCount() { return 1; }
Result<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  EXPECT_EQ(index, 0);
  static const testing::FakeDevice device;
  return std::unique_ptr<Device>(device.Again());
}

namespace testing {
namespace {

using Row = nlohmann::json;

int RunEngine(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "engine");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return EngineMain(static_cast<int>(argv.size()), argv.data());
}

TEST(GpuEngine, WritesARowForEachBucketSize) {
  FakeNccl nccl;
  for (const auto& [name, value] :
       {std::pair{"GRADIENTFLOW_RANK", "0"},
        {"GRADIENTFLOW_SIZE", "1"},
        {"GRADIENTFLOW_NCCL_LIBRARY", kFakeNcclPath}}) {
    setenv(name, value, 1);
  }
  const std::string plan = ::testing::TempDir() + "/plan.json";
  std::ofstream(plan) << R"({"name": "tiny", "tensors": [
      {"name": "a", "elements": 600000, "ready_seconds": 0.1},
      {"name": "b", "elements": 600000, "ready_seconds": 0}],
      "backward_seconds": 0.1, "rest_seconds": 0})";
  const std::string json = ::testing::TempDir() + "/rows.jsonl";
  ASSERT_EQ(RunEngine({"--plan", plan, "--bucket-mib", "1,4", "--steps", "2",
                       "--rounds", "1", "--json", json}),
            0);
  std::ifstream file(json);
  std::string line;
  for (const int theta : {1, 4}) {
    ASSERT_TRUE(std::getline(file, line)) << theta;
    const Row row = Row::parse(line);
    EXPECT_EQ(row.at("benchmark"), "gpu_engine");
    EXPECT_EQ(row.at("model"), "tiny");
    EXPECT_EQ(row.at("theta_mib"), theta);
    EXPECT_EQ(row.at("buckets"), theta == 1 ? 2 : 1);
    EXPECT_GT(row.at("bare_us"), 0);
    EXPECT_GT(row.at("ours_us"), 0);
    EXPECT_GT(row.at("checked_us"), 0);
    EXPECT_TRUE(row.contains("met"));
    EXPECT_EQ(row.at("device"), "fake:0");
  }
  EXPECT_FALSE(std::getline(file, line));
  EXPECT_EQ(nccl.Get(FakeNcclCount::kMisuses), 0);
}

}  // namespace
}  // namespace testing
}  // namespace gradientflow
