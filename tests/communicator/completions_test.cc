#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/communicator/ranks.h"
#include "tests/communicator/sums.h"

// Calls and messages with completions, and receives from any rank.
namespace gradientflow::testing {
namespace {

class Completions : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static CommJob MakeJob() {
    CommJob job;
    job.over = std::get<0>(GetParam());
    job.size = std::get<1>(GetParam());
    return job;
  }
};

TEST_P(Completions, RunOnceBeforeAwaitReturns) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    for (int round = 0; round < 50; ++round) {
      std::vector<double> data(static_cast<std::size_t>(round) * 97,
                               comm.rank() + 1);
      std::atomic<int> runs{0};
      const Result<std::uint64_t> ticket =
          comm.Start(Sum(&data), [&](const Status& status) {
            EXPECT_TRUE(status.ok());
            ++runs;
          });
      ASSERT_TRUE(ticket.ok());
      ASSERT_TRUE(comm.Wait(ticket.value(), -1).ok());
      EXPECT_EQ(runs, 1);
      EXPECT_TRUE(comm.Wait(ticket.value(), 0).ok());
      const double sum = comm.size() * (comm.size() + 1) / 2.0;
      EXPECT_EQ(data, std::vector<double>(data.size(), sum));
    }
  });
}

// No caller waits: the progress thread drives, and each completion starts the
// next call.
TEST_P(Completions, MayStartCalls) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    constexpr int kCalls = 30;
    std::vector<std::vector<double>> data(kCalls, std::vector<double>(513, 1));
    std::atomic<int> runs{0};
    std::function<void(int)> next = [&](int i) {
      const Result<std::uint64_t> ticket =
          comm.Start(Sum(&data[i]), [&, i](const Status& status) {
            EXPECT_TRUE(status.ok());
            if (i + 1 < kCalls) next(i + 1);
            ++runs;
            runs.notify_all();
          });
      EXPECT_TRUE(ticket.ok());
    };
    next(0);
    for (int seen = runs; seen < kCalls; seen = runs) runs.wait(seen);
    for (const auto& one : data) {
      EXPECT_EQ(one, std::vector<double>(513, comm.size()));
    }
  });
}

TEST_P(Completions, HoldNoLockOfTheCommunicator) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    // As a Python thread does: it holds a lock that the completion needs, and
    // calls the comm.
    std::vector<double> first(3, 1);
    std::vector<double> second(3, 1);
    std::atomic<bool> entered{false};
    std::atomic<bool> released{false};
    const Result<std::uint64_t> ticket =
        comm.Start(Sum(&first), [&](const Status&) {
          entered = true;
          entered.notify_all();
          released.wait(false);
        });
    ASSERT_TRUE(ticket.ok());
    entered.wait(false);
    EXPECT_TRUE(comm.Run(Sum(&second)).ok());
    EXPECT_EQ(comm.Wait(ticket.value(), 0).code(),
              StatusCode::kDeadlineExceeded);
    released = true;
    released.notify_all();
    EXPECT_TRUE(comm.Wait(ticket.value(), -1).ok());
  });
}

TEST_P(Completions, AwaitGivesUpInTimeAndTheCallGoesOn) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    std::vector<double> data(11, 2);
    char byte = 0;
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.Recv(0, 1, &byte, 1).ok());
    }
    std::atomic<int> runs{0};
    const Result<std::uint64_t> ticket =
        comm.Start(Sum(&data), [&](const Status&) { ++runs; });
    ASSERT_TRUE(ticket.ok());
    if (comm.rank() == 0) {
      EXPECT_EQ(comm.Wait(ticket.value(), 0.05).code(),
                StatusCode::kDeadlineExceeded);
      EXPECT_EQ(runs, 0);
      ASSERT_TRUE(comm.Send(1, 1, &byte, 1).ok());
    }
    EXPECT_EQ(comm.Wait(ticket.value(), std::nan("")).code(),
              StatusCode::kInvalidArgument);
    EXPECT_TRUE(comm.Wait(ticket.value(), HUGE_VAL).ok());
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(data, std::vector<double>(11, 2.0 * comm.size()));
  });
}

TEST_P(Completions, TakeMessagesFromAnyRank) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    const int size = comm.size();
    constexpr int kEach = 20;
    if (comm.rank() != 0) {
      for (int i = 0; i < kEach; ++i) {
        const int value = comm.rank() * 1000 + i;
        ASSERT_TRUE(comm.Send(0, 3, &value, sizeof(value)).ok());
      }
      return;
    }
    const int all = kEach * (size - 1);
    std::vector<int> values(static_cast<std::size_t>(all), -1);
    std::vector<int> sources(values.size(), -1);
    std::vector<std::uint64_t> tickets;
    for (int i = 0; i < all; ++i) {
      const Result<std::uint64_t> ticket = comm.StartRecv(
          {0, kAnyRank, 3, &sources[i]}, &values[i], sizeof(int),
          [](const Status& status) { EXPECT_TRUE(status.ok()); });
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(ticket.value());
    }
    for (const std::uint64_t ticket : tickets) {
      ASSERT_TRUE(comm.Wait(ticket, -1).ok());
    }
    // The messages of each sender arrive in order.
    std::vector<int> next(static_cast<std::size_t>(size), 0);
    for (int i = 0; i < all; ++i) {
      ASSERT_GE(sources[i], 1);
      EXPECT_EQ(values[i], sources[i] * 1000 + next[sources[i]]++);
    }
  });
}

// A receive from one rank that starts after one from any rank gets the later
// message.
TEST_P(Completions, ServeReceivesOfATagInOrder) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    if (comm.rank() == 1) {
      for (const int value : {10, 11}) {
        ASSERT_TRUE(comm.Send(0, 8, &value, sizeof(value)).ok());
      }
    }
    if (comm.rank() != 0) return;
    int any = 0;
    int one = 0;
    int source = -1;
    const auto told = [](const Status& status) { EXPECT_TRUE(status.ok()); };
    const auto first =
        comm.StartRecv({0, kAnyRank, 8, &source}, &any, sizeof(any), told);
    const auto second =
        comm.StartRecv({0, 1, 8, nullptr}, &one, sizeof(one), told);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(comm.Wait(second.value(), -1).ok());
    ASSERT_TRUE(comm.Wait(first.value(), -1).ok());
    EXPECT_EQ(source, 1);
    EXPECT_EQ(any, 10);
    EXPECT_EQ(one, 11);
  });
}

TEST_P(Completions, MessagesCountRanksWithinTheirGroup) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    const int last = comm.size() - 1;
    if (comm.rank() != 0 && comm.rank() != last) return;
    // Rank 0 of the group is the job's last.
    ASSERT_TRUE(comm.OpenGroup(2, {last, 0}).ok());
    const auto told = [](const Status& status) { EXPECT_TRUE(status.ok()); };
    int value = comm.rank() == 0 ? 41 : 0;
    int source = -1;
    const Result<std::uint64_t> ticket =
        comm.rank() == 0
            ? comm.StartSend({2, 0, 9}, &value, sizeof(value), told)
            : comm.StartRecv({2, kAnyRank, 9, &source}, &value, sizeof(value),
                             told);
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(comm.Wait(ticket.value(), -1).ok());
    EXPECT_EQ(value, 41);
    if (comm.rank() == last) {
      EXPECT_EQ(source, 1);
    }
    // The same tag and peers, but another group.
    EXPECT_EQ(comm.StartSend({3, 0, 9}, &value, 4, told).status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(comm.StartSend({2, 2, 9}, &value, 4, told).status().code(),
              StatusCode::kInvalidArgument);
  });
}

TEST_P(Completions, HearOfAFailureAndOfTheEnd) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    std::atomic<int> failed{0};
    const auto told = [&](const Status& status) {
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.message().find("enough"), std::string::npos)
          << status.message();
      ++failed;
    };
    char bytes[3] = {};
    const auto any = comm.StartRecv({0, kAnyRank, 1}, &bytes[0], 1, told);
    const auto one = comm.StartRecv({0, (comm.rank() + 1) % comm.size(), 2},
                                    &bytes[1], 1, told);
    ASSERT_TRUE(any.ok() && one.ok());
    if (comm.rank() == 0) {
      comm.Abort(Status(StatusCode::kAborted, "enough"));
    }
    EXPECT_TRUE(comm.Wait(any.value(), -1).ok());
    EXPECT_TRUE(comm.Wait(one.value(), -1).ok());
    EXPECT_EQ(failed, 2);
    EXPECT_EQ(comm.Check().code(), StatusCode::kAborted);
    std::vector<double> data(1);
    const auto late = comm.Start(Sum(&data), told);
    ASSERT_TRUE(late.ok());
    EXPECT_TRUE(comm.Wait(late.value(), -1).ok());
    EXPECT_EQ(failed, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(InProcess, Completions,
                         ::testing::Combine(::testing::Values(Over::kMemory,
                                                              Over::kMessages,
                                                              Over::kDevices),
                                            ::testing::Values(2, 3, 5)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Joined, Completions,
                         ::testing::Values(std::tuple{Over::kTcp, 2},
                                           std::tuple{Over::kMixed, 4},
                                           std::tuple{Over::kRdma, 2}),
                         ParamName);

// A completion that starts a call while its communicator closes is refused. If
// the other rank closes first, the call begins, and fails.
TEST(CompletionsAtTheEnd, MayStartNothingMore) {
  CommJob job;
  job.size = 2;
  std::atomic<int> refused{0};
  char bytes[2] = {};
  std::vector<double> data[2] = {{0}, {0}};
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    ASSERT_TRUE(opened.ok());
    Communicator* comm = opened.value().get();
    ASSERT_TRUE(comm->StartRecv({0, 1 - options.rank, 2}, &bytes[options.rank],
                                1,
                                [&, comm, rank = options.rank](const Status&) {
                                  const auto count = [&](const Status& status) {
                                    if (!status.ok()) ++refused;
                                  };
                                  const auto more =
                                      comm->Start(Sum(&data[rank]), count);
                                  if (!more.ok()) ++refused;
                                })
                    .ok());
    opened.value().reset();
  });
  EXPECT_EQ(refused, 2);
}

TEST(CompletionsAtTheEnd, MayLookAtTheCommunicator) {
  CommJob job;
  job.size = 2;
  std::atomic<int> looked{0};
  char bytes[2] = {};
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    ASSERT_TRUE(opened.ok());
    Communicator* comm = opened.value().get();
    ASSERT_TRUE(comm->OpenGroup(4, {0, 1}).ok());
    const auto look = [&looked, comm](const Status&) {
      comm->Abort(Status(StatusCode::kAborted, "too late"));
      EXPECT_FALSE(comm->Check().ok());
      EXPECT_EQ(comm->OpenGroup(5, {0, 1}).code(), StatusCode::kAborted);
      EXPECT_EQ(comm->CloseGroup(4).code(), StatusCode::kAborted);
      ++looked;
    };
    ASSERT_TRUE(
        comm->StartRecv({0, kAnyRank, 2}, &bytes[options.rank], 1, look).ok());
    opened.value().reset();
  });
  EXPECT_EQ(looked, 2);
}

TEST(CompletionsAtTheEnd, RunIfTheirGroupWasClosedJustBefore) {
  CommJob job;
  job.size = 2;
  std::atomic<int> told{0};
  char bytes[2] = {};
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    ASSERT_TRUE(opened.ok());
    Communicator& comm = *opened.value();
    ASSERT_TRUE(comm.OpenGroup(4, {0, 1}).ok());
    ASSERT_TRUE(comm.StartRecv({4, kAnyRank, 2}, &bytes[options.rank], 1,
                               [&](const Status& status) {
                                 EXPECT_FALSE(status.ok());
                                 ++told;
                               })
                    .ok());
    ASSERT_TRUE(comm.CloseGroup(4).ok());
    opened.value().reset();
  });
  EXPECT_EQ(told, 2);
}

TEST(ReceivesFromAnyRank, EndWhenAllOthersHaveLeft) {
  CommJob job;
  job.size = 3;
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    ASSERT_TRUE(opened.ok());
    Communicator& comm = *opened.value();
    int value = options.rank;
    if (options.rank != 0) {
      // Messages that came before the good-bye still count.
      ASSERT_TRUE(comm.Send(0, 7, &value, sizeof(value)).ok());
      return;
    }
    for (int i = 1; i <= 3; ++i) {
      StatusCode code = StatusCode::kInternal;
      const auto ticket =
          comm.StartRecv({0, kAnyRank, 7}, &value, sizeof(value),
                         [&](const Status& status) { code = status.code(); });
      ASSERT_TRUE(ticket.ok());
      ASSERT_TRUE(comm.Wait(ticket.value(), 60).ok());
      EXPECT_EQ(code, i < 3 ? StatusCode::kOk : StatusCode::kUnavailable);
    }
  });
}

// Messages, too, show that peers make progress.
TEST(Messages, KeepTheTimeOutAway) {
  CommJob job;
  job.size = 2;
  job.options.timeout_seconds = 1;
  RunRanks(job, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    char never = 0;
    const auto idle =
        comm.StartRecv({0, peer, 1}, &never, 1, [](const Status&) {});
    ASSERT_TRUE(idle.ok());
    for (int round = 0; round < 8; ++round) {
      EXPECT_EQ(comm.Wait(idle.value(), 0.2).code(),
                StatusCode::kDeadlineExceeded);
      int value = 0;
      if (comm.rank() == 0) {
        ASSERT_TRUE(comm.Send(peer, 2, &round, sizeof(round)).ok());
      } else {
        ASSERT_TRUE(comm.Recv(peer, 2, &value, sizeof(value)).ok());
        EXPECT_EQ(value, round);
      }
    }
    EXPECT_TRUE(comm.Check().ok());
    CollectiveCall barrier;
    barrier.kind = CollectiveKind::kBarrier;
    ASSERT_TRUE(comm.Run(barrier).ok());
    ASSERT_TRUE(comm.Send(peer, 1, &never, 1).ok());
    EXPECT_TRUE(comm.Wait(idle.value(), -1).ok());
  });
}

TEST(CompletionsAtTheEnd, RunWhenTheCommunicatorCloses) {
  CommJob job;
  job.size = 2;
  std::atomic<int> told{0};
  std::latch first_closed(1);
  char bytes[4] = {};
  OpenRanks(job, [&](const Options& options, OpenedComm opened) {
    ASSERT_TRUE(opened.ok());
    // The rank that closes last may first hear that the other one has left.
    const auto ended = [&](const Status& status) {
      if (options.rank == 0 || status.code() != StatusCode::kUnavailable) {
        EXPECT_EQ(status.code(), StatusCode::kAborted);
      }
      ++told;
    };
    Communicator& comm = *opened.value();
    ASSERT_TRUE(
        comm.StartRecv({0, kAnyRank, 1}, &bytes[2 * options.rank], 1, ended)
            .ok());
    ASSERT_TRUE(comm.StartRecv({0, 1 - options.rank, 2},
                               &bytes[2 * options.rank + 1], 1, ended)
                    .ok());
    if (options.rank == 1) first_closed.wait();
    opened.value().reset();
    if (options.rank == 0) first_closed.count_down();
  });
  EXPECT_EQ(told, 4);
}

// A framework's store replaces the rendezvous.
struct Store {
  std::atomic<int> there{0};
  std::vector<std::string> cards;
};

TEST(Exchanges, BringTheRanksTogether) {
  constexpr int kRanks = 3;
  Store store{{}, std::vector<std::string>(kRanks)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&store, rank] {
      Options options = CommJob::TestOptions();
      options.rank = rank;
      options.size = kRanks;
      OpenedComm opened = Communicator::Open(
          options,
          [&](const std::string& mine) -> Result<std::vector<std::string>> {
            store.cards[rank] = mine;
            ++store.there;
            store.there.notify_all();
            for (int n = store.there; n < kRanks; n = store.there) {
              store.there.wait(n);
            }
            return store.cards;
          });
      ASSERT_TRUE(opened.ok()) << opened.status().ToString();
      std::vector<double> data(5, rank);
      EXPECT_TRUE(opened.value()->Run(Sum(&data)).ok());
      EXPECT_EQ(data, std::vector<double>(5, 3));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Exchanges, MayFail) {
  Options options = CommJob::TestOptions();
  options.rank = 0;
  options.size = 2;
  OpenedComm opened = Communicator::Open(
      options, [](const std::string&) -> Result<std::vector<std::string>> {
        return Status(StatusCode::kUnavailable, "the store is gone");
      });
  EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
  opened = Communicator::Open(options, [](const std::string& mine) {
    return Result<std::vector<std::string>>(std::vector{mine});
  });
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(opened.status().message().find("1 cards, expected 2"),
            std::string::npos);
  opened = Communicator::Open(options, [](const std::string& mine) {
    return Result<std::vector<std::string>>(
        std::vector<std::string>{mine, "not a card"});
  });
  EXPECT_FALSE(opened.ok());
}

}  // namespace
}  // namespace gradientflow::testing
