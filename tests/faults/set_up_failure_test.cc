#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"

// A rank that cannot set up its shared memory: where nothing else is allowed,
// all ranks end at once, with its reason.
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
  void Run(int size, const std::string& fabric, std::size_t bytes,
           const std::vector<std::string>& reason) {
    const int culprit = GetParam();
    const Folder folder;
    JobConfig job;
    job.ranks = size;
    job.fabric = fabric;
    job.options.rendezvous = folder.url();
    job.options.join_timeout_seconds = 20;
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
  Run(3, "shm", kArena / 2,
      {"rank " + std::to_string(GetParam()) + " cannot join", "arena_bytes",
       "mmap"});
}

TEST_P(SetUpFailure, NoPlaceForPeersMemoryReachesAll) {
  Run(3, "shm", kArena * 3 / 2,
      {"rank " + std::to_string(GetParam()) + " to rank ", "arena_bytes",
       "mmap"});
}

// With TCP to fall back on, pairs of ranks that cannot share memory use it. The
// culprit has room for the memory of `peers` peers, or for the FIFOs of so many
// in its own.
enum class Room : std::uint8_t { kForPeers, kForFifos };
class SetUpWithoutMemory : public SetUpFailure {
 protected:
  void Train(bool one_host, std::size_t peers, Room room = Room::kForPeers) {
    const int culprit = GetParam();
    const Folder folder;
    JobConfig job;
    job.ranks = 4;
    job.fabric = "mixed";
    job.options.rendezvous = folder.url();
    job.options.join_timeout_seconds = 20;
    Scenario ranks(4, [&](int rank, Board& board) -> Status {
      Options options = OptionsOf(job, rank);
      options.arena_bytes = kArena;
      if (one_host) options.host_id = "one";
      options.log_level = LogLevel::kWarning;
      if (std::freopen(LogOf(folder, rank).c_str(), "w", stderr) == nullptr) {
        return Status(StatusCode::kInternal, "no log");
      }
      if (rank == culprit && room == Room::kForPeers) {
        LimitMemory(kArena * (peers + 1) + kArena / 2);
      }
      if (rank == culprit && room == Room::kForFifos) {
        options.fifo_bytes = kArena / (2 * peers);
      }
      auto session = GradientSession::Open(options, TensorsOf(job));
      if (!session.ok()) return session.status();
      for (std::uint64_t step = 0; step < 3; ++step) {
        GF_RETURN_IF_ERROR(
            TrainStep(job, step, session.value().get(), &board[rank]));
      }
      return Status();
    });
    for (int r = 0; r < 4; ++r) ranks.ExpectSuccess(r, 2 * kMostSeconds);
    const std::size_t without = (one_host ? 3 : 2) - peers;
    std::size_t warnings = 0;
    for (int r = 0; r < 4; ++r) {
      const std::size_t of_rank = Warnings(folder, r);
      EXPECT_LE(of_rank, 1U) << "rank " << r;
      warnings += of_rank;
    }
    EXPECT_EQ(Warnings(folder, culprit), 1U);
    EXPECT_EQ(warnings, 1 + without) << "one of each rank of such a pair";
    std::size_t slower = 0;
    for (int r = 0; r < 4; ++r) {
      slower += Warnings(folder, r, "collectives use messages inside hosts");
    }
    EXPECT_EQ(slower, 1U) << "one for all ranks";
  }

  static std::string LogOf(const Folder& folder, int rank) {
    return folder.url().substr(7) + "/log." + std::to_string(rank);
  }
  static std::size_t Warnings(const Folder& folder, int rank,
                              const std::string& of = "going on by tcp") {
    std::ifstream file(LogOf(folder, rank));
    std::size_t lines = 0;
    for (std::string line; std::getline(file, line);) {
      lines += line.find(of) != std::string::npos ? 1 : 0;
    }
    return lines;
  }
};

TEST_P(SetUpWithoutMemory, OfTwoPeersUsesTcp) { Train(true, 1); }

TEST_P(SetUpWithoutMemory, OfAnyPeerUsesTcp) { Train(true, 0); }

TEST_P(SetUpWithoutMemory, ForItsFifosUsesTcp) {
  Train(true, 1, Room::kForFifos);
}

TEST_P(SetUpWithoutMemory, OfItsHostUsesTcpBesideOtherHosts) {
  Train(false, 1);
}

INSTANTIATE_TEST_SUITE_P(Culprits, SetUpWithoutMemory,
                         ::testing::Values(0, 1, 2));

INSTANTIATE_TEST_SUITE_P(Culprits, SetUpFailure, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace gradientflow::faults
