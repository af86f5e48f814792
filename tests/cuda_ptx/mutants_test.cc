#include "tests/cuda_ptx/mutants.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_ptx/library.h"
#include "tests/cuda_ptx/machine.h"

// Whether the suites notice mistakes. They run once, as they are. Before some
// launches of a kernel that has a barrier, the process forks for each of its
// mutants that nobody has noticed yet: the child goes on with the mutant for a
// few launches, and ends when a case fails.
namespace gradientflow::cuda_ptx {
namespace {

constexpr std::uint64_t kSeed = 14;
// All barriers are removed; of the addresses, this many of each kernel are
// shifted, chosen by the seed.
constexpr std::size_t kAddressesOfAKernel = 4;
// Of a child.
constexpr int kMostLaunches = 6;
// No launch of the suites needs as many. A mistake may make a loop endless.
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 25;
constexpr int kNoticed = 3;
// Of the shifted addresses; each missed one is named. A child sees few
// launches, and not each of them comes to that access in a way that shows.
constexpr int kLeastPercentOfAddresses = 95;

// Mutants that do what the kernel does, and so cannot be noticed.
struct Equivalent {
  const char* kernel;  // A part of its name.
  const char* place;   // The end of NameOf().
};
constexpr Equivalent kEquivalents[] = {
    // These have one tile, and the barrier is for readers of the one before.
    {"Select<4, true>", "(number 3 of its kind)"},
    {"Select<16, true>", "(number 3 of its kind)"},
};

bool IsEquivalent(const Mutant& mutant) {
  const std::string name = NameOf(mutant);
  return mutant.mistake == Mistake::kNoBarrier &&
         std::any_of(std::begin(kEquivalents), std::end(kEquivalents),
                     [&](const Equivalent& each) {
                       return name.find(each.kernel) != std::string::npos &&
                              name.find(each.place) != std::string::npos;
                     });
}

struct Tried {
  Mutant mutant;
  bool noticed;
  bool crashed;
};

class Trials : public ::testing::EmptyTestEventListener {
 public:
  static Trials& Get() {
    static auto* const trials = new Trials;
    return *trials;
  }

  // The mutants of kernels that have a barrier, for every architecture whose
  // text differs.
  void Choose() {
    for (Program& program : Library::Get().programs()) {
      std::mt19937_64 random(kSeed);
      for (const std::string& name : program.kernels()) {
        const Result<Kernel*> kernel = program.Find(name);
        if (kernel.ok()) ChooseOf(*kernel.value(), random);
      }
    }
  }
  void BeforeLaunch(Kernel& kernel) {
    if (is_child_) {
      if (++launches_ == kMostLaunches) _exit(0);
      return;
    }
    const auto found = tried_.find(&kernel);
    if (found == tried_.end()) return;
    // The 1st launch in a case, the 2nd, 4th, 8th...
    const int count = ++counts_[&kernel];
    if ((count & (count - 1)) != 0) return;
    for (Tried& tried : found->second) {
      const bool again = tried.mutant.mistake != Mistake::kNone || count == 1;
      if (!tried.noticed && again && !is_child_) Try(tried);
    }
  }
  const std::map<Kernel*, std::vector<Tried>>& tried() const { return tried_; }

  void OnTestStart(const ::testing::TestInfo&) override {
    Machine::Get().SetSeed(kSeed);
    counts_.clear();
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (is_child_ && result.failed()) _exit(kNoticed);
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    if (is_child_) _exit(0);
  }

 private:
  void ChooseOf(Kernel& kernel, std::mt19937_64& random) {
    std::vector<Mutant> chosen;
    std::vector<Mutant> addresses;
    for (const Mutant& mutant : MutantsOf(kernel)) {
      const bool barrier = mutant.mistake == Mistake::kNoBarrier;
      (barrier ? chosen : addresses).push_back(mutant);
    }
    if (chosen.empty()) return;
    std::sample(addresses.begin(), addresses.end(), std::back_inserter(chosen),
                kAddressesOfAKernel, random);
    chosen.push_back({&kernel, 0, Mistake::kNone});
    for (const Mutant& mutant : chosen) {
      tried_[&kernel].push_back({mutant, false, false});
    }
  }

  // Returns in the child, too.
  void Try(Tried& tried) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      is_child_ = true;
      // What a child says of failures is not the test's.
      if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(1);
      // Barriers between a block's pieces of work matter from the second on.
      Machine::Get().UseOneBlock();
      new Mutated(tried.mutant);  // For the rest of the process.
      return;
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child ||
        !WIFEXITED(status)) {
      tried.crashed = true;
    } else {
      tried.noticed = WEXITSTATUS(status) == kNoticed;
    }
  }

  std::map<Kernel*, std::vector<Tried>> tried_;
  std::map<Kernel*, int> counts_;  // Launches in this case.
  bool is_child_ = false;
  int launches_ = 0;
};

void ExpectNoticed(Mistake mistake, const char* what) {
  int made = 0;
  int noticed = 0;
  int equivalent = 0;
  int unreached = 0;
  for (const auto& [kernel, all] : Trials::Get().tried()) {
    for (const Tried& tried : all) {
      if (tried.mutant.mistake != mistake) continue;
      if (kernel->executed[tried.mutant.at] == 0) {
        ++unreached;
        // An access may be for sizes that no suite has; a barrier is for all.
        EXPECT_NE(mistake, Mistake::kNoBarrier)
            << "never executed: " << NameOf(tried.mutant);
        continue;
      }
      if (IsEquivalent(tried.mutant)) {
        ++equivalent;
        EXPECT_FALSE(tried.noticed) << NameOf(tried.mutant);
        continue;
      }
      ++made;
      noticed += tried.noticed ? 1 : 0;
      EXPECT_FALSE(tried.crashed) << NameOf(tried.mutant);
      if (tried.noticed) continue;
      const std::string text = "missed: " + NameOf(tried.mutant);
      EXPECT_NE(mistake, Mistake::kNoBarrier) << text;
      std::printf("cuda_ptx: %s\n", text.c_str());
    }
  }
  std::printf(
      "cuda_ptx: %s: %d of %d mutants noticed; %d do what the kernel does; %d "
      "never executed\n",
      what, noticed, made, equivalent, unreached);
  EXPECT_GT(made, 0);
  EXPECT_GE(noticed, made * kLeastPercentOfAddresses / 100);
}

TEST(Mutants, WithoutAMistakePass) {
  for (const auto& [kernel, all] : Trials::Get().tried()) {
    for (const Tried& tried : all) {
      if (tried.mutant.mistake != Mistake::kNone) continue;
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
  Machine::Get().SetBeforeLaunch(
      [&trials](Kernel& kernel) { trials.BeforeLaunch(kernel); });
  GTEST_FLAG_SET(filter, "*/*");
  const int rc = RUN_ALL_TESTS();
  if (rc != 0) return rc;
  // It belongs to googletest again.
  if (report != nullptr) listeners.Append(report);
  GTEST_FLAG_SET(filter, "Mutants.*");
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace gradientflow::cuda_ptx

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return gradientflow::cuda_ptx::RunAll();
}
