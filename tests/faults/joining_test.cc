#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/communicator/communicator.h"
#include "tests/faults/processes.h"
#include "tests/faults/scenario.h"
#include "tests/faults/strangers.h"

// Ranks that do not come, cannot come, or do not belong to the job.
namespace gradientflow::faults {
namespace {

// Limits this process to so many more descriptors.
void LeaveDescriptors(int count) {
  const int next = dup(STDERR_FILENO);
  close(next);
  const auto few = static_cast<rlim_t>(next + count);
  const rlimit limit = {few, few};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

class Joining : public ::testing::TestWithParam<const char*> {
 protected:
  Joining() {
    job_.options.rendezvous = GetParam() == std::string("file")
                                  ? folder_.url()
                                  : LocalRendezvous().value();
  }

  const Folder folder_;
  JobConfig job_;
};

TEST_P(Joining, MissingRankIsNamedWhenTheTimeIsOver) {
  job_.options.join_timeout_seconds = 1.5;
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    if (rank == 2) return Status();
    return Train(job_, rank, &board[rank]);
  });
  for (int r : {0, 1}) {
    ranks.ExpectError(r, 4, StatusCode::kDeadlineExceeded, {"2"});
  }
}

TEST_P(Joining, NoFileDescriptorsLeftIsSaidToBeThat) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  // It probes memory through a pipe, and takes a missing pipe for a fault.
  GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors itself";
#endif
#endif
  job_.options.join_timeout_seconds = 2;
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    if (rank == 0) LeaveDescriptors(3);
    return Train(job_, rank, &board[rank]);
  });
  ranks.ExpectError(0, 5, StatusCode::kResourceExhausted, {});
  for (int r : {1, 2}) {
    ASSERT_TRUE(ranks.EndsWithin(r, 10));
    EXPECT_NE(ranks[r].code.load(), StatusCode::kOk);
  }
}

TEST_P(Joining, ArenaThatIsTooSmallNamesTheSetting) {
  job_.fabric = "shm";
  Scenario ranks(2, [&](int rank, Board&) -> Status {
    JobConfig job = job_;
    job.ranks = 2;
    Options options = OptionsOf(job, rank);
    options.arena_bytes = std::size_t{8} << 20;
    std::vector<TensorSpec> tensors = TensorsOf(job);
    tensors[0].elements = std::size_t{16} << 20;
    return GradientSession::Open(options, tensors).status();
  });
  for (int r : {0, 1}) {
    ranks.ExpectError(r, 10, StatusCode::kResourceExhausted, {"arena_bytes"});
  }
}

TEST_P(Joining, StrangerWithAnotherTokenIsKeptOut) {
  job_.options.join_timeout_seconds = 5;
  // Process 3 claims to be rank 1, and comes first.
  Scenario ranks(4, [&](int process, Board& board) -> Status {
    JobConfig job = job_;
    if (process == 3) {
      job.options.job_token = "another job";
      job.options.join_timeout_seconds = 1;
      return Train(job, 1, &board[process]);
    }
    Eventually([&] { return board[3].ended_ns.load() != 0 || process == 0; },
               5);
    return Train(job, process, &board[process]);
  });
  ASSERT_TRUE(ranks.EndsWithin(3, 10));
  EXPECT_NE(ranks[3].code.load(), StatusCode::kOk);
  for (int r : {0, 1, 2}) ranks.ExpectSuccess(r, 20);
}

TEST_P(Joining, PortScannerDisturbsNoOne) {
  job_.options.join_timeout_seconds = 20;
  job_.steps = 30;
  Scenario ranks(4, [&](int process, Board& board) -> Status {
    if (process < 3) {
      // Comes last: the others wait with their ports open.
      if (process == 2) {
        Eventually([&] { return board[3].step.load() > 0; }, 15);
      }
      return Train(job_, process, &board[process]);
    }
    Scanner scanner(getppid());
    std::uint64_t opened = 0;
    while (board[0].ended_ns.load() == 0) {
      opened += scanner.KnockAtAllPorts();
      board[3].step.store(opened);
      Pause(std::chrono::milliseconds(1));
    }
    return opened > 0 ? Status()
                      : Status(StatusCode::kInternal, "found no port");
  });
  for (int r : {0, 1, 2}) ranks.ExpectSuccess(r, 30);
  ranks.ExpectSuccess(3, 30);
}

// Silent strangers come before the ranks, more than rank 0 can have open: at
// its rendezvous, if that is by TCP, and where peers connect.
TEST_P(Joining, CrowdOfStrangersDisturbsNoOne) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  // It probes memory through a pipe, and takes a missing pipe for a fault.
  GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors itself";
#endif
#endif
  job_.options.join_timeout_seconds = 20;
  Scenario ranks(4, [&](int process, Board& board) -> Status {
    const bool is_rank = process < 3;
    if (is_rank) {
      // The other ranks come when all strangers have connected.
      if (process > 0) {
        Eventually([&] { return board[3].step.load() > 0; }, 15);
      } else {
        LeaveDescriptors(24);
      }
      return Train(job_, process, &board[process]);
    }
    Scanner scanner(getppid());
    std::size_t there = 0;
    Eventually(
        [&] {
          there += scanner.StandAtAllPorts(500);
          return there >= 500;
        },
        15);
    board[3].step.store(there);
    Eventually([&] { return board[0].ended_ns.load() != 0; }, 30);
    return there >= 500 ? Status()
                        : Status(StatusCode::kInternal, "found no port");
  });
  for (int r : {0, 1, 2, 3}) ranks.ExpectSuccess(r, 30);
}

// Returns how long 7 ranks need to join rank 0, which may open 1024 files and
// at whose ports so many silent strangers stand.
double SecondsToJoin(std::size_t strangers) {
  constexpr int kRanks = 8;
  JobConfig job;
  job.ranks = kRanks;
  job.options.rendezvous = LocalRendezvous().value();
  job.options.join_timeout_seconds = 60;
  Scenario ranks(kRanks + 1, [&](int process, Board& board) -> Status {
    RankReport& crowd = board[kRanks];
    if (process == kRanks) {
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
      Scanner scanner(getppid());
      std::size_t there = 0;
      Eventually(
          [&] {
            there += scanner.StandAtAllPorts(strangers > 1 ? 100 : 1);
            return there >= strangers;
          },
          40);
      crowd.step.store(static_cast<std::uint64_t>(NowNs()));
      Eventually([&] { return board[0].ended_ns.load() != 0; }, 60);
      return there >= strangers
                 ? Status()
                 : Status(StatusCode::kInternal, "too few strangers");
    }
    if (process == 0) {
      const rlimit few = {1024, 1024};
      setrlimit(RLIMIT_NOFILE, &few);
    } else {
      Eventually([&] { return crowd.step.load() != 0; }, 40);
    }
    const auto comm = Communicator::Open(OptionsOf(job, process));
    board[process].End(NowNs(), comm.status());
    // All are open before the first one closes.
    Eventually(
        [&] {
          for (int r = 0; r < kRanks; ++r) {
            if (board[r].ended_ns.load() == 0) return false;
          }
          return true;
        },
        60);
    return comm.status();
  });
  std::int64_t last = 0;
  for (int r = 0; r <= kRanks; ++r) {
    ranks.ExpectSuccess(r, 90);
    if (r < kRanks) last = std::max(last, ranks[r].ended_ns.load());
  }
  const auto began = static_cast<std::int64_t>(ranks[kRanks].step.load());
  return static_cast<double>(last - began) * 1e-9;
}

// Records how much longer it takes: less than a second on a quiet machine.
TEST(JoiningInACrowd, TwoThousandSilentStrangersDoNotKeepRanksOut) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors itself";
#endif
#endif
  const double alone = SecondsToJoin(1);
  const double crowded = SecondsToJoin(2000);
  ::testing::Test::RecordProperty("seconds_with_one_stranger",
                                  std::to_string(alone));
  ::testing::Test::RecordProperty("seconds_with_2000", std::to_string(crowded));
  std::printf("joined after %.3f s with 1 stranger, %.3f s with 2000\n", alone,
              crowded);
}

INSTANTIATE_TEST_SUITE_P(Rendezvous, Joining, ::testing::Values("tcp", "file"),
                         [](const auto& test) {
                           return std::string(test.param);
                         });

}  // namespace
}  // namespace gradientflow::faults
