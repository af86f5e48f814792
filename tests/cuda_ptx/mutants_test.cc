#include "tests/cuda_ptx/mutants.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_ptx/library.h"
#include "tests/cuda_ptx/machine.h"
#include "tests/cuda_ptx/memory.h"
#include "tests/cuda_ptx/tables_ptx.h"

// Whether the suites notice mistakes. They run once, as they are. After a
// launch of a kernel that has a barrier, the process forks for each of its
// mutants that differs in an instruction which this launch executed, and that
// nobody has noticed yet: the child takes the device's memory back to what it
// was, launches the mutant instead, and goes on until a case fails or it has
// seen a few launches.
namespace gradientflow::cuda_ptx {
namespace {

constexpr std::uint64_t kSeed = 14;
// The launches of a child: a case may look at its results after two.
constexpr int kMostLaunches = 2;
// No launch of the suites needs as many. A mistake may make a loop endless.
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 25;
constexpr int kNoticed = 3;

struct Tried {
  Mutant mutant;
  bool executed = false;
  bool noticed = false;
  bool crashed = false;
  int launches = 0;  // In this case, that executed it.
};

class Trials : public ::testing::EmptyTestEventListener {
 public:
  static Trials& Get() {
    static auto* const trials = new Trials;
    return *trials;
  }

  // All mutants of kernels that have a barrier, for every architecture whose
  // text differs; and these kernels themselves.
  void Choose() {
    for (Program& program : Library::Get().programs()) {
      // Not all are decoded: a small process forks sooner.
      for (const std::string& name : program.KernelsWith("bar")) {
        const Result<Kernel*> kernel = program.Find(name);
        if (kernel.ok()) ChooseOf(*kernel.value());
      }
    }
  }
  Status Around(Kernel& kernel, const Machine::RunKernel& run) {
    if (is_child_) {
      if (launches_++ == kMostLaunches) _exit(0);
      return run();
    }
    const auto found = tried_.find(&kernel);
    if (found == tried_.end() || AllNoticed(found->second)) return run();
    const std::vector<std::byte> before = DeviceMemory::Get().Save();
    std::fill(kernel.executed.begin(), kernel.executed.end(), 0);
    const Status status = run();
    for (Tried& tried : found->second) {
      if (!IsDue(tried) || !Try(tried)) continue;
      DeviceMemory::Get().Restore(before);
      return Around(kernel, run);
    }
    return status;
  }
  const std::map<Kernel*, std::vector<Tried>>& tried() const { return tried_; }

  void OnTestStart(const ::testing::TestInfo&) override {
    Machine::Get().SetSeed(kSeed);
    for (auto& [kernel, all] : tried_) {
      for (Tried& tried : all) tried.launches = 0;
    }
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (is_child_ && result.failed()) _exit(kNoticed);
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    if (is_child_) _exit(0);
  }

 private:
  void ChooseOf(Kernel& kernel) {
    std::vector<Mutant> mutants = MutantsOf(kernel);
    const bool has_barrier =
        std::any_of(mutants.begin(), mutants.end(), [](const Mutant& mutant) {
          return mutant.mistake == Mistake::kNoBarrier;
        });
    if (!has_barrier) return;
    mutants.push_back({&kernel, 0, Mistake::kNone});
    for (const Mutant& mutant : mutants) {
      tried_[&kernel].push_back({.mutant = mutant});
    }
  }

  static bool AllNoticed(const std::vector<Tried>& all) {
    return std::all_of(all.begin(), all.end(), [](const Tried& tried) {
      return tried.noticed ||
             (tried.executed && tried.mutant.mistake == Mistake::kNone);
    });
  }

  // In each case the 1st launch that executes it, the 2nd, the 4th, the 8th...
  static bool IsDue(Tried& tried) {
    const Mutant& mutant = tried.mutant;
    if (tried.noticed || mutant.kernel->executed[mutant.at] == 0) return false;
    const bool again = mutant.mistake != Mistake::kNone || !tried.executed;
    tried.executed = true;
    const int count = ++tried.launches;
    return again && (count & (count - 1)) == 0;
  }

  // True in the child.
  bool Try(Tried& tried) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      is_child_ = true;
      // What a child says of failures is not the test's.
      if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(1);
      // Barriers between a block's pieces of work matter from the second on.
      Machine::Get().UseOneBlock();
      new Mutated(tried.mutant);  // For the rest of the process.
      return true;
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child ||
        !WIFEXITED(status)) {
      tried.crashed = true;
    } else {
      tried.noticed = WEXITSTATUS(status) == kNoticed;
    }
    return false;
  }

  std::map<Kernel*, std::vector<Tried>> tried_;
  bool is_child_ = false;
  int launches_ = 0;
};

// Each mutant of this kind is executed, and a case fails of it.
void ExpectNoticed(Mistake mistake, const char* what) {
  int made = 0;
  int noticed = 0;
  for (const auto& [kernel, all] : Trials::Get().tried()) {
    for (const Tried& tried : all) {
      if (tried.mutant.mistake != mistake) continue;
      ++made;
      noticed += tried.noticed ? 1 : 0;
      EXPECT_TRUE(tried.executed) << "never executed: " << NameOf(tried.mutant);
      EXPECT_FALSE(tried.crashed) << NameOf(tried.mutant);
      EXPECT_TRUE(tried.noticed || !tried.executed)
          << "missed: " << NameOf(tried.mutant);
    }
  }
  std::printf("cuda_ptx: %s: %d of %d mutants noticed\n", what, noticed, made);
  EXPECT_GT(made, 0);
}

TEST(Mutants, WithoutAMistakePass) {
  for (const auto& [kernel, all] : Trials::Get().tried()) {
    for (const Tried& tried : all) {
      if (tried.mutant.mistake != Mistake::kNone) continue;
      EXPECT_TRUE(tried.executed) << kernel->name;
      EXPECT_FALSE(tried.noticed || tried.crashed) << kernel->name;
    }
  }
}

TEST(Mutants, WithoutABarrierAreNoticed) {
  ExpectNoticed(Mistake::kNoBarrier, "a barrier is gone");
}
TEST(Mutants, WithAShiftedAddressAreNoticed) {
  ExpectNoticed(Mistake::kOtherAddress, "an address is shifted");
}

// Runs the suites, and then what they noticed as cases of their own.
int RunAll() {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  auto* const report = listeners.Release(listeners.default_xml_generator());
  Trials& trials = Trials::Get();
  trials.Choose();
  listeners.Append(&trials);
  Machine::Get().SetMostSteps(kMostSteps);
  Machine::Get().SetAround(
      [&trials](Kernel& kernel, const Machine::RunKernel& run) {
        return trials.Around(kernel, run);
      });
  GTEST_FLAG_SET(filter, "*/*");
  const int rc = RUN_ALL_TESTS();
  if (rc != 0) return rc;
  // It belongs to googletest again.
  if (report != nullptr) listeners.Append(report);
  GTEST_FLAG_SET(filter, "Mutants.*");
  return RUN_ALL_TESTS();
}

}  // namespace

bool ArchitecturesTakeTurns() { return false; }

}  // namespace gradientflow::cuda_ptx

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return gradientflow::cuda_ptx::RunAll();
}
