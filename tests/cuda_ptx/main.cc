#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "tests/cuda_ptx/machine.h"

// main() of suites that run on the Machine. --seed=N chooses the orders in
// which blocks, warps and lanes take turns; without it they are new each time.
// A case that fails says which seed it had.
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
    const std::string name = test.name();
    const bool passed = test.result()->Passed();
    if (passed) ++passed_[name.substr(name.rfind('/') + 1)];
    if (test.result()->Failed()) {
      std::printf("cuda_ptx: to repeat these orders: --seed=%llu\n",
                  static_cast<unsigned long long>(seed_));
    }
  }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    for (const auto& [program, cases] : passed_) {
      std::printf("cuda_ptx: %s: %d cases passed\n", program.c_str(), cases);
    }
    std::printf("cuda_ptx: %llu instructions of warps\n",
                static_cast<unsigned long long>(Machine::Get().steps()));
  }

 private:
  const std::uint64_t seed_;
  std::map<std::string, int> passed_;
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
}  // namespace gradientflow::cuda_ptx

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // It belongs to googletest.
  ::testing::UnitTest::GetInstance()->listeners().Append(
      new gradientflow::cuda_ptx::Seeds(
          gradientflow::cuda_ptx::SeedOf(argc, argv)));
  return RUN_ALL_TESTS();
}
