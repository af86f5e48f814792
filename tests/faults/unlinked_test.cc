#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/communicator.h"
#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"

// Jobs whose ranks connect when they need each other: what happens to a rank is
// heard by those that are not linked to it, too. Among 8 ranks, 0 and 3 are
// linked to all but two others each, and not to each other.
namespace gradientflow::faults {
namespace {

constexpr int kRanks = 8;
constexpr int kVictim = 3;

class Unlinked : public ::testing::Test {
 protected:
  Unlinked() {
    job_.ranks = kRanks;
    job_.options.rendezvous = folder_.url();
    job_.options.join_timeout_seconds = 30;
    // Nothing here is found out by this time-out unless a test says so.
    job_.options.heartbeat_timeout_seconds = 60;
  }
  Result<std::shared_ptr<Communicator>> Open(int rank) const {
    Options options = OptionsOf(job_, rank);
    options.connect = ConnectMode::kNeeded;
    return Communicator::Open(options);
  }
  static Status Allreduce(Communicator& comm) {
    std::vector<float> data(1000, 1.0F);
    CollectiveCall call;
    call.output = data.data();
    call.count = data.size();
    return comm.Run(call);
  }
  // Waits until all ranks have opened.
  static bool AllAreOpen(Scenario& ranks) {
    return Eventually(
        [&] {
          for (int r = 0; r < kRanks; ++r) {
            if (ranks[r].phase.load() != Phase::kBetween) return false;
          }
          return true;
        },
        60);
  }

  // Records after how many seconds the last rank has named the victim.
  static void KillAndExpectItsName(Scenario& ranks) {
    const std::int64_t killed = NowNs();
    ranks.processes().Signal(kVictim, SIGKILL);
    double last = 0;
    for (int r = 0; r < kRanks; ++r) {
      if (r == kVictim) continue;
      ranks.ExpectError(r, 20, StatusCode::kUnavailable, {"rank 3 ("});
      const std::int64_t ended = ranks[r].ended_ns.load();
      last = std::max(last, static_cast<double>(ended - killed) * 1e-9);
    }
    RecordProperty("seconds_until_named", StrCat(last));
  }

  const Folder folder_;
  JobConfig job_;
};

TEST_F(Unlinked, ADeathDuringCollectivesIsNamedOnAllRanks) {
  Scenario ranks(kRanks, [&](int rank, Board& board) -> Status {
    const auto comm = Open(rank);
    if (!comm.ok()) return comm.status();
    for (;;) {
      GF_RETURN_IF_ERROR(Allreduce(*comm.value()));
      board[rank].phase.store(Phase::kBetween);
    }
  });
  ASSERT_TRUE(AllAreOpen(ranks));
  KillAndExpectItsName(ranks);
}

// Rank 0 waits for a rank that it is not linked to; the others wait for
// nothing, until they call again.
TEST_F(Unlinked, ADeathIsHeardByRanksThatWaitAndByIdleOnes) {
  Scenario ranks(kRanks, [&](int rank, Board& board) -> Status {
    const auto comm = Open(rank);
    if (!comm.ok()) return comm.status();
    board[rank].phase.store(Phase::kBetween);
    char byte = 0;
    if (rank == 0) return comm.value()->Recv(kVictim, 1, &byte, 1);
    Status seen;
    Eventually(
        [&] {
          seen = comm.value()->Check();
          return !seen.ok();
        },
        40);
    return seen;
  });
  ASSERT_TRUE(AllAreOpen(ranks));
  KillAndExpectItsName(ranks);
}

TEST_F(Unlinked, AStoppedRankIsNamedByWhoWaitsForIt) {
  job_.options.heartbeat_timeout_seconds = 1.5;
  Scenario ranks(kRanks, [&](int rank, Board& board) -> Status {
    const auto comm = Open(rank);
    if (!comm.ok()) return comm.status();
    board[rank].phase.store(Phase::kBetween);
    char byte = 0;
    // Rank 0 begins when the other one has been stopped.
    if (rank == 0) {
      Eventually([&] { return board[0].step.load() == 1; }, 60);
      return comm.value()->Recv(kVictim, 1, &byte, 1);
    }
    Eventually([&] { return !comm.value()->Check().ok(); }, 40);
    return comm.value()->Check();
  });
  ASSERT_TRUE(AllAreOpen(ranks));
  ranks.processes().Signal(kVictim, SIGSTOP);
  ranks[0].step.store(1);
  for (int r = 0; r < kRanks; ++r) {
    if (r == kVictim) continue;
    ranks.ExpectError(r, 30, StatusCode::kDeadlineExceeded,
                      {"rank 3 (", "silent"});
  }
}

TEST_F(Unlinked, WhoNeedsARankThatHasLeftIsToldSo) {
  Scenario ranks(kRanks, [&](int rank, Board& board) -> Status {
    auto comm = Open(rank);
    if (!comm.ok()) return comm.status();
    board[rank].phase.store(Phase::kBetween);
    const char byte = 'x';
    Eventually([&] { return board[0].step.load() == 1; }, 60);
    if (rank == kVictim) return Status();  // Leaves.
    if (rank != 0) {
      Eventually([&] { return !comm.value()->Check().ok(); }, 40);
      return comm.value()->Check();
    }
    Eventually([&] { return board[kVictim].ended_ns.load() != 0; }, 60);
    return comm.value()->Send(kVictim, 1, &byte, 1);
  });
  ASSERT_TRUE(AllAreOpen(ranks));
  ranks[0].step.store(1);
  ranks.ExpectSuccess(kVictim, 20);
  for (int r = 0; r < kRanks; ++r) {
    if (r == kVictim) continue;
    ranks.ExpectError(r, 30, StatusCode::kUnavailable,
                      {"rank 3 (", "has left the job, but rank 0"});
  }
}

TEST_F(Unlinked, RanksThatWereNeverLinkedLeaveOneByOne) {
  Scenario ranks(kRanks, [&](int rank, Board& board) -> Status {
    auto comm = Open(rank);
    if (!comm.ok()) return comm.status();
    GF_RETURN_IF_ERROR(Allreduce(*comm.value()));
    board[rank].phase.store(Phase::kBetween);
    // Each leaves when the one before it has.
    Eventually(
        [&] { return rank == 0 || board[rank - 1].ended_ns.load() != 0; }, 60);
    const Status before = comm.value()->Check();
    return before;
  });
  for (int r = 0; r < kRanks; ++r) ranks.ExpectSuccess(r, 60);
}

}  // namespace
}  // namespace gradientflow::faults
