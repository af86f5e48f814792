#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/gpu/program.h"
#include "benchmarks/gpu/rig.h"
#include "benchmarks/kernels/gpu_runner.h"
#include "benchmarks/kernels/kernel_case.h"
#include "gtest/gtest.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"
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
    rig_ = std::make_unique<Rig>(std::make_shared<FakeDevice>(), settings);
  }

  void RunAll(const KernelCases& cases) {
    for (const KernelCase& which : cases) {
      const Row row = RunCase(*rig_, which);
      EXPECT_EQ(row["kernel"], which.name);
      EXPECT_GT(row["us"].get<double>(), 0);
      if (which.bytes > 0) {
        EXPECT_GT(row["ratio"].get<double>(), 0);
        // No kernel here works without touching its largest buffer, or moves
        // all of its memory more than twice.
        double most = 0;
        double all = 0;
        for (const CaseBuffer& buffer : which.buffers) {
          all += static_cast<double>(buffer.bytes);
          most = std::max(most, static_cast<double>(buffer.bytes));
        }
        EXPECT_LE(which.bytes, 2 * all) << which.name;
        if (which.bytes > 1e4 && which.name != "csc after the wire") {
          EXPECT_GE(which.bytes, most) << which.name;
        }
      }
    }
  }

  std::string ErrorOf(const KernelCase& which) {
    try {
      RunCase(*rig_, which);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
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
  for (const KernelCase& which : HostCases(10007)) {
    for (auto* table = tables + 1; *table != nullptr; ++table) {
      std::vector<std::vector<std::byte>> contents;
      Memory memory;
      for (std::size_t b = 0; b < which.buffers.size(); ++b) {
        contents.push_back(InitialContents(which, b, memory));
        memory.push_back(contents.back().data());
      }
      ASSERT_EQ(which.launch({{**table, chunks, *table}, memory, nullptr}), 0);
      EXPECT_NO_THROW(Verify(which, {**tables, chunks, *tables},
                             [&](std::size_t b) { return memory[b]; }))
          << (*table)->name << ": " << which.name;
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
          [=](const Site& s) {
            return s.tables.elements.convert(
                {s.m[0], DType::kFloat32, s.m[1], DType::kFloat32, nullptr,
                 1009, s.stream == nullptr ? 0.5F : device_scale, nullptr},
                s.stream);
          }};
}

TEST_F(GpuCases, AWrongResultIsNotTimed) {
  EXPECT_NO_THROW(RunCase(*rig_, Wrong(0.5F, 0)));
  EXPECT_NO_THROW(RunCase(*rig_, Wrong(0.5001F, 1e-3)));
  for (const double tolerance : {0.0, 1e-4}) {
    EXPECT_NE(ErrorOf(Wrong(0.5001F, tolerance)).find("wrong: buffer 1"),
              std::string::npos);
  }
}

TEST_F(GpuCases, ALaunchThatFailsSaysWhichKernel) {
  KernelCase bad = Wrong(0.5F, 0);
  bad.launch = [](const Site& s) { return s.stream == nullptr ? 0 : 719; };
  EXPECT_NE(ErrorOf(bad).find("kernel wrong: device error 719"),
            std::string::npos);
}

TEST_F(GpuCases, TargetsDecideWhetherARowIsMet) {
  KernelCase fast = Wrong(0.5F, 0);
  fast.target = 1e-9;
  EXPECT_TRUE(RunCase(*rig_, fast)["met"].get<bool>());
  fast.target = 1e9;
  EXPECT_FALSE(RunCase(*rig_, fast)["met"].get<bool>());
  fast.target = 0;
  fast.most_us = 1e-9;
  EXPECT_FALSE(RunCase(*rig_, fast)["met"].get<bool>());
}

TEST(ShortName, TellsTypesApart) {
  EXPECT_EQ(ShortName(DType::kFloat32), "f32");
  EXPECT_EQ(ShortName(DType::kBFloat16), "bf16");
  EXPECT_EQ(ShortName(DType::kInt8), "i8");
}

}  // namespace
}  // namespace gradientflow::benchmarks
