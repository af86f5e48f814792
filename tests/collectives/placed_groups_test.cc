#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// Groups of some of the ranks that place their gradients in the window that
// their members have lent them.
namespace gradientflow::testing {
namespace {

using Members = std::vector<int>;

// What the ranks tell each other beside the network: who has lent, round by
// round.
class Board {
 public:
  explicit Board(int ranks) : told_(static_cast<std::size_t>(ranks)) {}
  // Returns whether all members have told this `round` that they lend.
  bool AllLend(int rank, const Members& members, int round, bool lends) {
    told_[static_cast<std::size_t>(rank)] = 2 * round + (lends ? 1 : 0);
    bool all = true;
    for (const int member : members) {
      int seen = 0;
      while ((seen = told_[static_cast<std::size_t>(member)]) < 2 * round) {
        std::this_thread::yield();
      }
      all &= seen == 2 * round + 1;
    }
    return all;
  }

 private:
  std::vector<std::atomic<int>> told_;
};

// The sums that have left before are told to have left, so that the window is
// free.
void Quiet(TestRank& rank) {
  const ThreadPlaces::Counts& counts = rank.places()->counts();
  rank.Drive([&] { return counts.done == counts.puts; });
}

// An allreduce of `count` floats, checked against the sum. It is placed if its
// group may do that.
class Flight {
 public:
  Flight(TestRank& rank, GroupId id, const Members& members, std::size_t count,
         std::uint64_t seed, Channel channel = Channel::kGradients,
         Feed* feed = nullptr)
      : members_(members), count_(count), seed_(seed) {
    const auto me = std::find(members.begin(), members.end(), rank.rank());
    data_ = Encode(
        DType::kFloat32,
        Contribution(static_cast<int>(me - members.begin()), count, seed));
    CollectiveCall call;
    call.group = id;
    call.channel = channel;
    call.algorithm = &allreduce::kGdraa;
    call.output = data_.data();
    call.count = count;
    call.step = seed;
    call.feed = feed;
    rank.executor().Start(call, ending_.done());
  }
  const Status& End(TestRank& rank) {
    rank.Drive([&] { return ending_.over(); });
    return ending_.status;
  }
  void Check(TestRank& rank) {
    ASSERT_TRUE(End(rank).ok()) << ending_.status.ToString();
    EXPECT_TRUE(
        Near(Decode(DType::kFloat32, data_.data(), count_),
             ExactSum(static_cast<int>(members_.size()), count_, seed_, 1),
             Precision(DType::kFloat32), 4));
  }

 private:
  const Members members_;
  const std::size_t count_;
  const std::uint64_t seed_;
  std::vector<std::byte> data_;
  Ending ending_;
};

// The ranks are dealt to groups of any size and order, again and again, while
// calls of all ranks are under way.
TEST(PlacedGroups, TakeTurnsWithTheWindow) {
  constexpr int kRanks = 6;
  constexpr int kRounds = 40;
  Board board(kRanks);
  Members everyone(kRanks);
  std::iota(everyone.begin(), everyone.end(), 0);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    std::mt19937_64 random(7);  // The same on all ranks.
    for (int round = 1; round <= kRounds; ++round) {
      const auto id = static_cast<GroupId>(round);
      Members dealt = everyone;
      std::shuffle(dealt.begin(), dealt.end(), random);
      const auto cut = dealt.begin() + 2 + static_cast<long>(random() % 3);
      const bool first = std::find(dealt.begin(), cut, rank.rank()) != cut;
      const Members members =
          first ? Members(dealt.begin(), cut) : Members(cut, dealt.end());
      const std::size_t counts[] = {1 + random() % 9, 1 + random() % 5000,
                                    1 + random() % 20'000};
      Executor& executor = rank.executor();
      ASSERT_TRUE(executor.OpenGroup(id, members).ok());
      Quiet(rank);
      ASSERT_TRUE(executor.LendPlaces(members));
      ASSERT_TRUE(board.AllLend(rank.rank(), members, round, true));
      executor.UsePlaces(id);
      const auto before = rank.places()->counts().puts;
      std::vector<std::unique_ptr<Flight>> flights;
      for (const std::size_t count : counts) {
        flights.push_back(
            std::make_unique<Flight>(rank, id, members, count, count));
      }
      for (const auto& flight : flights) flight->Check(rank);
      EXPECT_GE(rank.places()->counts().puts, before + members.size() - 1);
      EXPECT_EQ(rank.places()->counts().messages, 0U)
          << "gradients of groups are placed as well";
      executor.EndPlaces(id);
      if (::testing::Test::HasFailure()) return;
      ASSERT_TRUE(executor.CloseGroup(id).ok());
      Flight(rank, 0, everyone, counts[1], 1).Check(rank);
    }
  });
}

TEST(PlacedGroups, MayLendTheWindowAgain) {
  constexpr int kRanks = 4;
  Board board(kRanks);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    const Members members = rank.rank() < 2 ? Members{1, 0} : Members{2, 3};
    ASSERT_TRUE(rank.executor().OpenGroup(5, members).ok());
    for (int round = 1; round < 30; ++round) {
      Quiet(rank);
      ASSERT_TRUE(rank.executor().LendPlaces(members));
      ASSERT_TRUE(board.AllLend(rank.rank(), members, round, true));
      rank.executor().UsePlaces(5);
      Flight(rank, 5, members, 6000, 1).Check(rank);
      rank.executor().EndPlaces(5);
    }
    EXPECT_EQ(rank.places()->counts().messages, 0U);
  });
}

TEST(PlacedGroups, PlaceNothingUnlessAllLend) {
  constexpr int kRanks = 3;
  Board board(kRanks);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    const Members members = {2, 0, 1};
    Executor& executor = rank.executor();
    ASSERT_TRUE(executor.OpenGroup(5, members).ok());
    const bool lends = rank.rank() != 1 && executor.LendPlaces(members);
    ASSERT_FALSE(board.AllLend(rank.rank(), members, 1, lends));
    if (lends) executor.EndPlaces(5);
    Flight(rank, 5, members, 3000, 1).Check(rank);
    EXPECT_EQ(rank.places()->counts().puts, 0U);
    EXPECT_GT(rank.places()->counts().messages, 0U);
  });
}

// Has the first elements of a buffer from the start, and the rest when told.
class FirstPart final : public Feed {
 public:
  FirstPart(std::size_t first, std::size_t count)
      : available_(first), count_(count) {}
  std::size_t available() const override { return available_; }
  void Finished(std::size_t, std::size_t) override { finished_ = true; }
  bool finished() const { return finished_; }
  void BringTheRest() { available_ = count_; }

 private:
  std::size_t available_;
  const std::size_t count_;
  bool finished_ = false;
};

// A group's places end while a call waits for its caller. All slots are free
// then, but the call's other parts will need them.
TEST(PlacedGroups, CallsInFlightKeepTheWindow) {
  constexpr int kRanks = 3;
  constexpr std::size_t kFirst = 1500;  // One segment, and not two.
  constexpr std::size_t kCount = 20'000;
  Board board(kRanks);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    const Members members = {1, 2, 0};
    Executor& executor = rank.executor();
    ASSERT_TRUE(executor.OpenGroup(5, members).ok());
    ASSERT_TRUE(executor.LendPlaces(members));
    ASSERT_TRUE(board.AllLend(rank.rank(), members, 1, true));
    executor.UsePlaces(5);
    FirstPart feed(kFirst, kCount);
    Flight flight(rank, 5, members, kCount, 1, Channel::kGradients, &feed);
    rank.Drive([&] { return feed.finished(); });
    Quiet(rank);
    executor.EndPlaces(5);
    EXPECT_TRUE(executor.PlacesAreQuiet()) << "nobody waits for a caller";
    EXPECT_FALSE(executor.LendPlaces({0, 1, 2}));
    feed.BringTheRest();
    flight.Check(rank);
    EXPECT_EQ(rank.places()->counts().messages, 0U);
    Quiet(rank);
    EXPECT_TRUE(executor.LendPlaces({0, 1, 2}));
  });
}

// One rank's call is of nothing, and ends at once, but not before the group's
// places do. What the others have put for it must still be noticed.
TEST(PlacedGroups, CallsInFlightAreComparedAfterTheEnd) {
  constexpr int kRanks = 3;
  Board board(kRanks);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    const Members members = {0, 1, 2};
    Executor& executor = rank.executor();
    ASSERT_TRUE(executor.OpenGroup(5, members).ok());
    ASSERT_TRUE(executor.LendPlaces(members));
    ASSERT_TRUE(board.AllLend(rank.rank(), members, 1, true));
    executor.UsePlaces(5);
    const bool differs = rank.rank() == kRanks - 1;
    if (differs) {
      rank.Drive([&] { return rank.places()->counts().notices == kRanks - 1; });
    }
    Flight flight(rank, 5, members, differs ? 0 : 100, 1);
    if (differs) executor.EndPlaces(5);
    const Status ended = flight.End(rank);
    EXPECT_EQ(ended.ok(), differs) << ended.ToString();
    rank.Drive([&] { return !rank.fabric().status().ok(); });
    const std::string why = rank.fabric().status().ToString();
    EXPECT_NE(why.find("the ranks call different collectives"),
              std::string::npos)
        << why;
  });
}

// The window has no room for other calls of the group.
TEST(PlacedGroups, PlaceOnlyGradients) {
  constexpr int kRanks = 2;
  Board board(kRanks);
  OnRanks(PlacingRanks(kRanks), [&](TestRank& rank) {
    const Members members = {0, 1};
    Executor& executor = rank.executor();
    ASSERT_TRUE(executor.OpenGroup(5, members).ok());
    ASSERT_TRUE(executor.LendPlaces(members));
    ASSERT_TRUE(board.AllLend(rank.rank(), members, 1, true));
    executor.UsePlaces(5);
    Flight(rank, 5, members, 3000, 1, Channel::kPlain).Check(rank);
    EXPECT_EQ(rank.places()->counts().puts, 0U);
    Flight(rank, 5, members, 3000, 1).Check(rank);
    EXPECT_GT(rank.places()->counts().puts, 0U);
  });
}

TEST(PlacedGroups, LendTheWindowToOneGroupWhoseRanksHavePlaces) {
  OnRanks(PlacingRanks(3), [](TestRank& rank) {
    Executor& executor = rank.executor();
    EXPECT_FALSE(executor.LendPlaces({rank.rank()}));
    EXPECT_TRUE(executor.LendPlaces({0, 1, 2}));
    EXPECT_FALSE(executor.LendPlaces({2, 1, 0})) << "it is lent";
    executor.EndPlaces(9);
    EXPECT_TRUE(executor.LendPlaces({2, 1, 0}));
  });
  RanksSetup hosts = PlacingRanks(4);
  hosts.memory = true;
  hosts.ranks_per_host = 2;
  OnRanks(hosts, [](TestRank& rank) {
    Executor& executor = rank.executor();
    EXPECT_FALSE(executor.LendPlaces({0, 1, 2, 3})) << "some share memory";
    EXPECT_TRUE(executor.LendPlaces({rank.rank() % 2, 2 + rank.rank() % 2}));
  });
  hosts.places = false;
  OnRanks(hosts, [](TestRank& rank) {
    EXPECT_FALSE(rank.executor().LendPlaces({0, 2}));
  });
}

// The columns of a job with several ranks per host, as when its hosts divide a
// model and its columns the data.
TEST(PlacedGroups, OfColumnsBetweenHosts) {
  constexpr int kRanks = 6;
  Board board(kRanks);
  RanksSetup hosts = PlacingRanks(kRanks);
  hosts.memory = true;
  hosts.ranks_per_host = 2;
  OnRanks(hosts, [&](TestRank& rank) {
    const int column = rank.rank() % 2;
    const Members members = {4 + column, column, 2 + column};
    Executor& executor = rank.executor();
    const auto id = static_cast<GroupId>(5 + column);
    ASSERT_TRUE(executor.OpenGroup(id, members).ok());
    ASSERT_TRUE(executor.LendPlaces(members));
    ASSERT_TRUE(board.AllLend(rank.rank(), members, 1, true));
    executor.UsePlaces(id);
    for (const std::size_t count : {5U, 3000U, 40'000U}) {
      const auto before = rank.places()->counts().puts;
      Flight(rank, id, members, count, count).Check(rank);
      EXPECT_GE(rank.places()->counts().puts, before + 2);
    }
  });
}

}  // namespace
}  // namespace gradientflow::testing
