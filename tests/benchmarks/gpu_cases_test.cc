#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu/case_runner.h"
#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/rig.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/device/fake_device.h"

// The GPU's benchmarks, on a fake device: that the cases fit the kernels, stay
// within their buffers, and that a wrong result is seen.
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
      EXPECT_EQ(result.value().name, which.name);
      EXPECT_GT(result.value().timing.seconds, 0);
      if (which.bytes > 0) {
        EXPECT_GT(result.value().timing.copy_share, 0);
        // No kernel here can be done without touching its largest buffer, nor
        // moves all of its memory more than twice.
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
}

TEST_F(GpuCases, ChunkKernelsGiveTheCpusResults) {
  RunAll(ChunkCases(1000003));
}

TEST_F(GpuCases, OptimisersKernelsGiveTheCpusResults) {
  RunAll(TileCases(500009));
}

TEST_F(GpuCases, TheSparsePathGivesTheCpusResults) {
  RunAll(CscPathCases(1000003));
}

TEST_F(GpuCases, WorkForTinyPools) {
  for (const std::size_t n : {1, 61, 127}) {
    RunAll(ElementCases(n));
    RunAll(TileCases(n));
  }
}

// Converts, on the device by another factor than on the CPU.
KernelCase Wrong(float device_scale, double tolerance) {
  KernelCase made;
  made.name = "wrong";
  made.bytes = 100;
  made.AddNormal(DType::kFloat32, 1009);
  made.AddZeros(1009 * sizeof(float));
  made.buffers.back().tolerance = tolerance;
  made.launch = [=](const KernelTables& tables, const KernelCase::Memory& m,
                    void* stream) {
    kernels::ConvertArgs args{};
    args.src = m[0];
    args.src_type = DType::kFloat32;
    args.dst = m[1];
    args.dst_type = DType::kFloat32;
    args.n = 1009;
    args.scale = stream == nullptr ? 0.5F : device_scale;
    return tables.elements.convert(args, stream);
  };
  return made;
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

CaseResult Example() {
  CaseResult result;
  result.name = "convert f32>f16";
  result.device = "fake:0";
  result.bytes = 4e8;
  result.timing = {1e-4, 4.2e12, 0.952};
  result.target = 0.85;
  return result;
}

TEST(CaseLine, SaysWhetherTheTargetsAreMet) {
  CaseResult result = Example();
  EXPECT_EQ(CaseLine(result),
            "convert f32>f16             400.0    100.0     4000       4200"
            "  0.952  ok    0.85\n");
  result.target = 0.96;
  EXPECT_NE(CaseLine(result).find("MISS"), std::string::npos);
  result.target = 0.85;
  result.most_us = 99;
  EXPECT_NE(CaseLine(result).find("MISS  0.85  99 us"), std::string::npos);
}

TEST(CaseJson, IsOneLineWithEveryColumn) {
  const std::string text = CaseJson("gpu_kernels", Example());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["benchmark"], "gpu_kernels");
  EXPECT_EQ(json["kernel"], "convert f32>f16");
  EXPECT_DOUBLE_EQ(json["gb_per_s"].get<double>(), 4000);
  EXPECT_DOUBLE_EQ(json["ratio"].get<double>(), 0.952);
  EXPECT_TRUE(json["met"].get<bool>());
}

}  // namespace
}  // namespace gradientflow::benchmarks
