#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "tests/cuda_ptx/library.h"
#include "tests/cuda_ptx/machine.h"
#include "tests/cuda_ptx/tables_ptx.h"

// main() of the suites on the Machine. --seed=N chooses the orders in which
// blocks, warps and lanes take turns, and which architecture's kernel is
// launched first; without it they are new each time. A case that fails says
// which seed it had.
namespace gradientflow::cuda_ptx {
namespace {

class Seeds : public ::testing::EmptyTestEventListener {
 public:
  explicit Seeds(std::uint64_t seed) : seed_(seed) {}

  // Each case has the same orders whichever others run.
  void OnTestStart(const ::testing::TestInfo&) override {
    Machine::Get().SetSeed(seed_);
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Failed()) {
      std::printf("cuda_ptx: to repeat these orders: --seed=%llu\n",
                  static_cast<unsigned long long>(seed_));
    }
  }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    std::printf("cuda_ptx: %llu instructions of warps\n",
                static_cast<unsigned long long>(Machine::Get().steps()));
  }

 private:
  const std::uint64_t seed_;
};

// If no case was left out, all kernels of all architectures have run.
class EveryKernelRan : public ::testing::Environment {
 public:
  void TearDown() override {
    if (GTEST_FLAG_GET(filter) != "*") return;
    for (Program& program : Library::Get().programs()) {
      int ran = 0;
      for (const std::string& name : program.kernels()) {
        const Result<Kernel*> kernel = program.Find(name);
        if (!kernel.ok()) continue;  // A case of library_test.
        const auto& executed = kernel.value()->executed;
        const bool any = std::any_of(executed.begin(), executed.end(),
                                     [](unsigned char e) { return e != 0; });
        EXPECT_TRUE(any) << program.name() << ": no case ran " << name;
        ran += any ? 1 : 0;
      }
      std::printf("cuda_ptx: %s: %d kernels ran\n", program.name().c_str(),
                  ran);
    }
  }
};

std::uint64_t SeedOf(int argc, char** argv) {
  constexpr std::string_view kFlag = "--seed=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, kFlag.size()) == kFlag) {
      return std::strtoull(argv[i] + kFlag.size(), nullptr, 0);
    }
  }
  return std::random_device()();
}

}  // namespace

bool ArchitecturesTakeTurns() { return true; }

}  // namespace gradientflow::cuda_ptx

int main(int argc, char** argv) {
  namespace ptx = gradientflow::cuda_ptx;
  ::testing::InitGoogleTest(&argc, argv);
  // They belong to googletest.
  ::testing::UnitTest::GetInstance()->listeners().Append(
      new ptx::Seeds(ptx::SeedOf(argc, argv)));
  ::testing::AddGlobalTestEnvironment(new ptx::EveryKernelRan);
  return RUN_ALL_TESTS();
}
