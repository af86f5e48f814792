#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu/rig.h"
#include "benchmarks/kernels/gpu_runner.h"
#include "benchmarks/kernels/kernel_case.h"
#include "gtest/gtest.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"
#include "nlohmann/json.hpp"
#include "tests/device/fake_device.h"

// The GPU's benchmarks on a fake device: the cases fit the kernels and stay
// within their buffers, and a wrong result is detected.
namespace gradientflow::benchmarks {
namespace {

using testing::FakeDevice;

class GpuCases : public ::testing::Test {
 protected:
  void SetUp() override {
    Rig::Settings settings;
    settings.rounds = 2;
    settings.round_seconds = 1e-6;
    settings.copy_bytes = 1000;
    auto rig = Rig::Create(std::make_shared<FakeDevice>(), settings);
    ASSERT_TRUE(rig.ok()) << rig.status().ToString();
    rig_ = std::move(rig).value();
  }

  void RunAll(const std::vector<MakeCase>& cases) {
    for (const MakeCase& make : cases) {
      const KernelCase which = make();
      const auto result = RunCase(*rig_, which);
      ASSERT_TRUE(result.ok())
          << which.name << ": " << result.status().ToString();
      EXPECT_EQ(result.value()["kernel"], which.name);
      EXPECT_GT(result.value()["us"], 0);
      if (which.bytes > 0) {
        EXPECT_GT(result.value()["ratio"], 0);
        // No kernel here works without touching its largest buffer, or moves
        // all of its memory more than twice.
        double most = 0;
        double all = 0;
        for (const CaseBuffer& buffer : which.buffers) {
          all += static_cast<double>(buffer.bytes());
          most = std::max(most, static_cast<double>(buffer.bytes()));
        }
        EXPECT_LE(which.bytes, 2 * all) << which.name;
        if (which.bytes > 1e4 && which.name != "csc after the wire") {
          EXPECT_GE(which.bytes, most) << which.name;
        }
      }
    }
  }

  std::unique_ptr<Rig> rig_;
};

TEST_F(GpuCases, ElementKernelsGiveTheCpusResults) {
  RunAll(ElementCases(10007));
  RunAll(DeviceCases(10007));
}

// The CPU's benchmark runs these, on every table.
TEST(HostCases, GiveTheSameResultsOnEveryTable) {
  const kernels::ChunkKernelTable& chunks = kernels::CpuChunkKernels();
  const kernels::CpuKernelTable* const* tables = kernels::AllCpuKernels();
  for (const MakeCase& make : HostCases(10007)) {
    const KernelCase which = make();
    const auto expected = RunOnHost(which, {**tables, chunks, *tables});
    ASSERT_TRUE(expected.ok()) << which.name;
    for (auto* table = tables + 1; *table != nullptr; ++table) {
      const auto seen = RunOnHost(which, {**table, chunks, *table});
      ASSERT_TRUE(seen.ok()) << which.name;
      for (std::size_t b = 0; b < which.buffers.size(); ++b) {
        const Status same = CompareBuffer(which, b, expected.value()[b].data(),
                                          seen.value()[b].data());
        EXPECT_TRUE(same.ok()) << (*table)->name << ": " << same.ToString();
      }
    }
  }
}

TEST_F(GpuCases, ChunkKernelsGiveTheCpusResults) {
  RunAll(ChunkCases(1000003));
}

TEST_F(GpuCases, OptimisersKernelsGiveTheCpusResults) {
  RunAll(TileCases(500009));
}

TEST_F(GpuCases, TheSparsePathGivesTheCpusResults) {
  RunAll(CscCases(1000003));
}

TEST_F(GpuCases, WorkForTinyPools) {
  for (const std::size_t n : {1, 61, 127}) {
    RunAll(ElementCases(n));
    RunAll(TileCases(n));
  }
}

// Converts with another factor on the device than on the CPU.
KernelCase Wrong(float device_scale, double tolerance) {
  return {"wrong",
          100,
          {Normal(DType::kFloat32, 1009, 0),
           Sums(DType::kFloat32, 1009, tolerance)},
          [=](const KernelTables& tables, const KernelCase::Memory& m,
              void* stream) {
            return tables.elements.convert(
                {m[0], DType::kFloat32, m[1], DType::kFloat32, nullptr, 1009,
                 stream == nullptr ? 0.5F : device_scale, nullptr},
                stream);
          }};
}

TEST_F(GpuCases, AWrongResultIsNotTimed) {
  EXPECT_TRUE(RunCase(*rig_, Wrong(0.5F, 0)).ok());
  EXPECT_TRUE(RunCase(*rig_, Wrong(0.5001F, 1e-3)).ok());
  for (const double tolerance : {0.0, 1e-4}) {
    const auto result = RunCase(*rig_, Wrong(0.5001F, tolerance));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(result.status().message().find("wrong: buffer 1"),
              std::string::npos)
        << result.status().ToString();
  }
}

TEST_F(GpuCases, ALaunchThatFailsSaysWhichKernel) {
  KernelCase bad = Wrong(0.5F, 0);
  bad.launch = [](const KernelTables&, const KernelCase::Memory&,
                  void* stream) { return stream == nullptr ? 0 : 719; };
  const auto result = RunCase(*rig_, bad);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("kernel wrong: device error 719"),
            std::string::npos);
}

TEST_F(GpuCases, TargetsDecideWhetherARowIsMet) {
  KernelCase fast = Wrong(0.5F, 0);
  fast.target = 1e-9;
  EXPECT_TRUE(RunCase(*rig_, fast).value()["met"].get<bool>());
  fast.target = 1e9;
  EXPECT_FALSE(RunCase(*rig_, fast).value()["met"].get<bool>());
  fast.target = 0;
  fast.most_us = 1e-9;
  EXPECT_FALSE(RunCase(*rig_, fast).value()["met"].get<bool>());
}

TEST(CaseLine, SaysWhetherTheTargetsAreMet) {
  nlohmann::json row = {{"kernel", "convert f32>f16"},
                        {"us", 100},
                        {"bytes", 4e8},
                        {"gb_per_s", 4000},
                        {"copy_gb_per_s", 4200},
                        {"ratio", 0.952},
                        {"target", 0.85},
                        {"met", true}};
  EXPECT_EQ(CaseLine(row),
            "convert f32>f16             400.0    100.0     4000       4200"
            "  0.952  ok    0.85\n");
  row["met"] = false;
  row["target_us"] = 99;
  EXPECT_NE(CaseLine(row).find("MISS  0.85  99 us"), std::string::npos);
}

TEST(ShortName, TellsTypesApart) {
  EXPECT_EQ(ShortName(DType::kFloat32), "f32");
  EXPECT_EQ(ShortName(DType::kBFloat16), "bf16");
  EXPECT_EQ(ShortName(DType::kInt8), "i8");
}

}  // namespace
}  // namespace gradientflow::benchmarks
