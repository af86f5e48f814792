#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"

// A rank that cannot set up its shared memory: all ranks end at once, with its
// reason.
namespace gradientflow::faults {
namespace {

constexpr std::size_t kArena = std::size_t{256} << 20;
// Far less than the time-out for joining.
constexpr double kMostSeconds = 5;
constexpr std::int64_t kMostApartNs = 1'500'000'000;

// Limits this process to so much more mapped memory.
void LimitMemory(std::size_t bytes) {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  const rlim_t most =
      pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit = {most, most};
  EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

class SetUpFailure : public ::testing::TestWithParam<int> {
 protected:
  // The culprit can map `bytes`; all ranks must end with `reason`.
  void Run(int size, JobFabric fabric, std::size_t bytes,
           const std::vector<std::string>& reason) {
    const int culprit = GetParam();
    const Folder folder;
    JobConfig job;
    job.ranks = size;
    job.fabric = fabric;
    job.rendezvous = folder.url();
    job.join_timeout_seconds = 20;
    Scenario ranks(size, [&](int rank, Board&) -> Status {
      Options options = OptionsOf(job, rank);
      options.arena_bytes = kArena;
      if (rank == culprit) LimitMemory(bytes);
      return GradientSession::Open(options, TensorsOf(job)).status();
    });
    std::int64_t first = INT64_MAX;
    std::int64_t last = 0;
    for (int r = 0; r < size; ++r) {
      ranks.ExpectError(r, kMostSeconds, StatusCode::kResourceExhausted,
                        reason);
      first = std::min(first, ranks[r].ended_ns.load());
      last = std::max(last, ranks[r].ended_ns.load());
    }
    EXPECT_LT(last - first, kMostApartNs);
  }
};

TEST_P(SetUpFailure, NoMemoryOfItsOwnReachesAll) {
  Run(3, JobFabric::kShm, kArena / 2,
      {"rank " + std::to_string(GetParam()) + " cannot join", "arena_bytes",
       "mmap"});
}

TEST_P(SetUpFailure, NoPlaceForPeersMemoryReachesAll) {
  Run(3, JobFabric::kShm, kArena * 3 / 2,
      {"rank " + std::to_string(GetParam()) + " to rank ", "arena_bytes",
       "mmap"});
}

TEST_P(SetUpFailure, NoPlaceForPeersMemoryReachesOtherHosts) {
  Run(4, JobFabric::kMixed, kArena * 3 / 2,
      {"rank " + std::to_string(GetParam()) + " to rank ", "arena_bytes",
       "mmap"});
}

INSTANTIATE_TEST_SUITE_P(Culprits, SetUpFailure, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace gradientflow::faults
