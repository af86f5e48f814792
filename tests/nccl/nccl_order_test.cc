#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/nccl/launch_order.h"
#include "tests/nccl/nccl_trouble.h"

// Calls of several communicators on one device: if ranks start them in the same
// order, no device needs room for two; otherwise it does, and if it has none,
// every rank says so.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kCount = 33;

TEST(LaunchOrder, IsThatInWhichCallsCame) {
  LaunchOrder order;
  const int a = 0;
  const int b = 0;
  order.Enter(&a);
  order.Enter(&b);
  EXPECT_EQ(order.users(), 2U);
  order.Join(&a);
  order.Join(&a);
  order.Join(&b);
  EXPECT_FALSE(order.May(&b));
  EXPECT_TRUE(order.May(&a));
  order.Leave(&a);
  EXPECT_FALSE(order.May(&b)) << "before the second call of the other";
  order.Leave(&a);
  EXPECT_TRUE(order.May(&b));
  order.Join(&a);
  EXPECT_FALSE(order.May(&a));
  order.Exit(&b);
  EXPECT_TRUE(order.May(&a));
  EXPECT_EQ(order.users(), 1U);
}

TEST(LaunchOrder, LetsOthersPassOneThatStepsAside) {
  LaunchOrder order;
  const int users[3] = {};
  for (const int& user : users) {
    order.Enter(&user);
    order.Join(&user);
  }
  order.StepAside(&users[0]);
  EXPECT_TRUE(order.May(&users[1]));
  EXPECT_TRUE(order.May(&users[0])) << "it is back";
  EXPECT_FALSE(order.May(&users[1]));
  order.Overtake(&users[2]);
  EXPECT_TRUE(order.May(&users[2]));
  order.Leave(&users[2]);
  EXPECT_TRUE(order.May(&users[1]));
  EXPECT_TRUE(order.May(&users[0])) << "it is back, too";
  EXPECT_FALSE(order.May(&users[1]));
}

TEST(LaunchOrder, IsSharedByAllOfADevice) {
  const auto one = LaunchOrder::Of(7);
  EXPECT_EQ(one, LaunchOrder::Of(7));
  EXPECT_NE(one, LaunchOrder::Of(8));
}

// A call, and the sum that it must leave.
struct Flight {
  Flight(NcclRank& self, Channel channel, std::uint64_t seed)
      : memory(
            self.Upload(NcclInput(DType::kFloat32, self.rank, kCount, seed))),
        call(Bucket(memory, kCount)) {
    call.channel = channel;
  }
  void Start(NcclCollective& collective) {
    collective.Start(call, outcome.done());
  }
  DeviceMemory memory;
  CollectiveCall call;
  Outcome outcome;
};
using Flights = std::vector<std::unique_ptr<Flight>>;

void PollUntilAllEnd(NcclCollective& collective, const Flights& flights) {
  for (const auto& flight : flights) {
    while (!flight->outcome.ended) {
      if (!collective.Poll()) std::this_thread::yield();
    }
  }
}

void ExpectAllOk(const Flights& flights) {
  for (const auto& flight : flights) {
    EXPECT_TRUE(flight->outcome.status.ok())
        << flight->outcome.status.ToString();
  }
}

class NcclOrder : public ::testing::Test {
 protected:
  NcclJob Job(double timeout_seconds) {
    NcclJob job;
    job.nccl = &nccl_;
    job.size = 2;
    job.adjust = [timeout_seconds](int, NcclArgs* args) {
      args->timeout_seconds = timeout_seconds;
      args->turn_seconds = 0.02;
    };
    return job;
  }

  FakeNccl nccl_;
};

// NCCL accepts the calls of one channel late, on each rank another.
TEST_F(NcclOrder, CallsReachTheDeviceAsTheyCame) {
  nccl_.Set(FakeNcclMode::kOneAtATime, 1);
  nccl_.Set(FakeNcclMode::kSlowOnes, 20);
  NcclJob job = Job(/*timeout_seconds=*/5);
  job.adjust = [before = job.adjust](int rank, NcclArgs* args) {
    before(rank, args);
    args->turn_seconds = 60;
  };
  RunNcclRanks(job, [](NcclRank& self) {
    for (std::uint64_t round = 0; round < 8; ++round) {
      Flights flights;
      for (const Channel channel : {Channel::kPlain, Channel::kGradients,
                                    Channel::kGradients, Channel::kPlain}) {
        flights.push_back(std::make_unique<Flight>(self, channel, round));
        flights.back()->Start(self.collective);
      }
      PollUntilAllEnd(self.collective, flights);
      ExpectAllOk(flights);
      if (HasFailure()) return;
    }
  });
}

// The ranks start in opposite orders.
void StartCrossed(NcclRank& self, Flights* flights) {
  flights->push_back(std::make_unique<Flight>(self, Channel::kPlain, 1));
  flights->push_back(std::make_unique<Flight>(self, Channel::kGradients, 2));
  const auto first = static_cast<std::size_t>(self.rank);
  (*flights)[first]->Start(self.collective);
  (*flights)[1 - first]->Start(self.collective);
}

// NCCL accepts neither first call before all ranks have made it.
TEST_F(NcclOrder, OfRanksMayDifferIfTheDeviceHasRoom) {
  nccl_.Set(FakeNcclMode::kFirstTogether, 1);
  RunNcclRanks(Job(/*timeout_seconds=*/10), [](NcclRank& self) {
    Flights flights;
    StartCrossed(self, &flights);
    PollUntilAllEnd(self.collective, flights);
    ExpectAllOk(flights);
  });
}

TEST_F(NcclOrder, OfRanksThatDiffersIsNamedIfTheDeviceHasNoRoom) {
  nccl_.Set(FakeNcclMode::kOneAtATime, 1);
  // So that neither rank makes room for the other before both have seen it.
  nccl_.Set(FakeNcclMode::kHangAbort, 1);
  std::latch both(2);
  RunNcclRanks(Job(/*timeout_seconds=*/0.2), [&](NcclRank& self) {
    Flights flights;
    StartCrossed(self, &flights);
    while (self.collective.status().ok()) self.collective.Poll();
    both.arrive_and_wait();
    nccl_.Set(FakeNcclMode::kHangAbort, 0);
    PollUntilAllEnd(self.collective, flights);
    for (const auto& flight : flights) {
      EXPECT_EQ(flight->outcome.status.code(), StatusCode::kDeadlineExceeded);
      ExpectSays(flight->outcome.status,
                 {"saw no call end for", "in flight beside it",
                  "step 7 bucket 3", "in different orders"});
    }
  });
}

// A rank comes late to a call for which NCCL connects. The other does not let
// later calls pass meanwhile: on its device these would wait for the late rank,
// whose own device works on the first call before.
TEST_F(NcclOrder, IsKeptWhileARankIsLate) {
  nccl_.Set(FakeNcclMode::kOneAtATime, 1);
  nccl_.Set(FakeNcclMode::kFirstTogether, 1);
  ManualClock clock;
  NcclJob job = Job(/*timeout_seconds=*/600);
  job.adjust = [&clock](int, NcclArgs* args) { args->clock = &clock; };
  std::latch late(1);
  std::latch connected(2);
  RunNcclRanks(job, [&](NcclRank& self) {
    Flights known;
    known.push_back(std::make_unique<Flight>(self, Channel::kGradients, 1));
    known[0]->Start(self.collective);
    PollUntilAllEnd(self.collective, known);
    connected.arrive_and_wait();
    if (self.rank == 1) late.wait();
    Flights flights;
    for (const Channel channel : {Channel::kPlain, Channel::kGradients}) {
      flights.push_back(std::make_unique<Flight>(self, channel, 2));
      flights.back()->Start(self.collective);
    }
    if (self.rank == 0) {
      for (int poll = 0; poll < 100; ++poll) {
        self.collective.Poll();
        clock.Advance(std::chrono::milliseconds(10));
      }
      late.count_down();
    }
    const auto begin = std::chrono::steady_clock::now();
    while (!flights[0]->outcome.ended || !flights[1]->outcome.ended) {
      if (!self.collective.Poll()) std::this_thread::yield();
      if (std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
        continue;
      }
      self.collective.Fail(Status(StatusCode::kAborted, "it stands"));
    }
    ExpectAllOk(flights);
  });
}

// Two communicators of this library on one device, each with a thread that
// drives it.
TEST_F(NcclOrder, IsThatOfAllCollectivesOfADevice) {
  nccl_.Set(FakeNcclMode::kOneAtATime, 1);
  nccl_.Set(FakeNcclMode::kSlowOnes, 20);
  NcclJob job = Job(/*timeout_seconds=*/5);
  std::vector<NcclArgs> args_of(2);
  job.adjust = [&args_of, before = job.adjust](int rank, NcclArgs* args) {
    before(rank, args);
    args->turn_seconds = 60;
    args_of[static_cast<std::size_t>(rank)] = *args;
  };
  std::promise<std::vector<std::byte>> said;
  const std::shared_future<std::vector<std::byte>> heard =
      said.get_future().share();
  RunNcclRanks(job, [&](NcclRank& self) {
    NcclArgs args = args_of[static_cast<std::size_t>(self.rank)];
    args.windows = false;
    args.broadcast = [&, rank = self.rank](void* data, std::size_t bytes) {
      auto* mine = static_cast<std::byte*>(data);
      if (rank == 0) said.set_value({mine, mine + bytes});
      std::memcpy(data, heard.get().data(), bytes);
      return Status();
    };
    auto made = NcclCollective::Create(std::move(args));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    NcclCollective& second = *made.value();
    constexpr int kRounds = 8;
    // How many calls of each have been started: they take turns.
    std::atomic<int> firsts = 0;
    std::atomic<int> seconds = 0;
    std::thread other([&] {
      for (int round = 0; round < kRounds; ++round) {
        while (firsts <= round) std::this_thread::yield();
        Flights flights;
        flights.push_back(std::make_unique<Flight>(self, Channel::kPlain, 3));
        flights.back()->Start(second);
        ++seconds;
        PollUntilAllEnd(second, flights);
        ExpectAllOk(flights);
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      Flights flights;
      flights.push_back(std::make_unique<Flight>(self, Channel::kGradients, 4));
      flights.back()->Start(self.collective);
      ++firsts;
      while (seconds <= round) std::this_thread::yield();
      PollUntilAllEnd(self.collective, flights);
      ExpectAllOk(flights);
    }
    other.join();
  });
}

// NCCL never accepts the call of one, nor does its abort return. The other does
// not wait for that.
TEST_F(NcclOrder, GoesOnWithoutACommunicatorThatIsAborted) {
  NcclJob job = Job(/*timeout_seconds=*/600);
  job.size = 1;
  NcclArgs args;
  job.adjust = [&args, before = job.adjust](int rank, NcclArgs* its) {
    before(rank, its);
    its->turn_seconds = 3600;
    args = *its;
  };
  RunNcclRanks(job, [&](NcclRank& self) {
    args.windows = false;
    args.broadcast = [](void*, std::size_t) { return Status(); };
    auto made = NcclCollective::Create(std::move(args));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    Flights flights;
    for (const std::uint64_t seed : {1, 2}) {
      flights.push_back(
          std::make_unique<Flight>(self, Channel::kGradients, seed));
    }
    nccl_.Set(FakeNcclMode::kHangCall, 1);
    nccl_.Set(FakeNcclMode::kHangAbort, 1);
    flights[0]->Start(self.collective);
    nccl_.Await(FakeNcclCount::kTroubles, 1);
    flights[1]->Start(*made.value());
    self.collective.Fail(Status(StatusCode::kAborted, "enough"));
    const auto begin = std::chrono::steady_clock::now();
    while (!flights[1]->outcome.ended &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(9)) {
      if (!made.value()->Poll()) std::this_thread::yield();
    }
    EXPECT_TRUE(flights[1]->outcome.ended);
    nccl_.Set(FakeNcclMode::kHangAbort, 0);
    while (!flights[0]->outcome.ended) self.collective.Poll();
  });
}

}  // namespace
}  // namespace gradientflow::testing
