#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_notice.h"
#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// Placed allreduces in jobs that go wrong: every rank learns of it, by name,
// and no memory is touched afterwards.
namespace gradientflow::testing {
namespace {

using Random = std::mt19937_64;

// An allreduce of floats; the network reaches every other buffer.
class Flight {
 public:
  Flight(TestRank& rank, std::size_t count, std::uint64_t seed)
      : rank_(rank), values_(Contribution(rank.rank(), count, seed)) {
    values_.reserve(count + 1);
    call_.output = values_.data();
    call_.count = count;
    call_.algorithm = &allreduce::kGdraa;
    if (count == 0 || (seed + rank.rank()) % 2 == 0) return;
    places_ = rank.places();
    places_->Register(values_.data(), count * sizeof(float));
  }
  ~Flight() {
    if (places_ != nullptr) places_->Deregister(values_.data());
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  CollectiveCall& call() { return call_; }
  void Start() { rank_.executor().Start(call_, ending_.done()); }
  const Status& Finish() {
    rank_.Drive([this] { return ending_.over(); });
    return ending_.status;
  }
  const Ending& ending() const { return ending_; }
  const std::vector<float>& values() const { return values_; }

 private:
  TestRank& rank_;
  std::vector<float> values_;
  CollectiveCall call_;
  Ending ending_;
  ThreadPlaces* places_ = nullptr;
};

void ExpectSays(const Status& status, const std::string& part) {
  EXPECT_NE(status.message().find(part), std::string::npos)
      << status.ToString() << ", expected: " << part;
}

TEST(PlacedCalls, ThatDifferEndTheJobOnAllRanks) {
  struct Difference {
    const char* what;
    void (*make)(CollectiveCall*);
  };
  const Difference differences[] = {
      {"count", [](CollectiveCall* c) { c->count = 1; }},
      {"segments", [](CollectiveCall* c) { c->count -= 1024; }},
      {"dtype", [](CollectiveCall* c) { c->dtype = c->wire = DType::kInt32; }},
      {"wire", [](CollectiveCall* c) { c->wire = DType::kFloat16; }},
      {"operation", [](CollectiveCall* c) { c->op = ReduceOp::kMax; }},
      {"step", [](CollectiveCall* c) { c->step = 7; }},
      {"place", [](CollectiveCall* c) { c->place = 3; }},
  };
  for (const int size : {2, 3, 5}) {
    for (const Difference& difference : differences) {
      for (const int who : {0, size - 1}) {
        OnRanks(PlacingRanks(size), [&](TestRank& rank) {
          Flight flight(rank, 3000, 1);
          if (rank.rank() == who) difference.make(&flight.call());
          flight.Start();
          const Status& status = flight.Finish();
          EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
              << difference.what << ": " << status.ToString();
          ExpectSays(status, "came to another call than rank");
          ExpectSays(status, StrCat("rank ", who));
        });
      }
    }
  }
}

// A rank that has nothing to reduce is done at once, before the others' parts
// have come, or when they have.
TEST(PlacedCalls, OfNothingAreNotTakenForThoseOfOtherRanks) {
  for (const int size : {2, 3, 5}) {
    for (const bool late : {false, true}) {
      OnRanks(PlacingRanks(size), [&](TestRank& rank) {
        const bool differs = rank.rank() == size - 1;
        Flight flight(rank, differs ? 0 : 100, 1);
        if (differs && late) {
          const auto others = static_cast<std::uint64_t>(size - 1);
          rank.Drive([&] { return rank.places()->counts().notices == others; });
        }
        flight.Start();
        const Status& status = flight.Finish();
        if (!differs) {
          ExpectSays(status, "the ranks call different collectives");
          ExpectSays(status, StrCat("which rank ", size - 1, " has finished"));
          return;
        }
        rank.Drive([&] { return !rank.fabric().status().ok(); });
        rank.Poll();
      });
    }
  }
}

TEST(PlacedCalls, FailIfARankHasLeftThatTheyNeed) {
  for (const int size : {2, 3, 5, 8}) {
    for (const int who : {0, size - 1}) {
      OnRanks(PlacingRanks(size), [&](TestRank& rank) {
        if (rank.rank() == who) return rank.Depart();
        Flight flight(rank, 5000, 1);
        flight.Start();
        const Status& status = flight.Finish();
        EXPECT_EQ(status.code(), StatusCode::kUnavailable);
        ExpectSays(status, StrCat("rank ", who));
        ExpectSays(status, "has left the job");
      });
    }
  }
}

TEST(PlacedCalls, EndWellIfARankLeavesThatHasDoneItsPart) {
  for (const int size : {2, 3, 5}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      OnRanks(PlacingRanks(size, seed), [&](TestRank& rank) {
        {
          Flight flight(rank, 5000, seed);
          flight.Start();
          const Status& status = flight.Finish();
          EXPECT_TRUE(status.ok()) << status.ToString();
          EXPECT_TRUE(
              Near(flight.values(), ExactSum(size, 5000, seed, 1.0), 24, 4));
        }
        if (rank.rank() == 0) return rank.Depart();
        rank.Drive([&] { return rank.fabric().HasDeparted(0); });
        EXPECT_TRUE(rank.fabric().status().ok());
      });
    }
  }
}

TEST(PlacedCalls, NameTheRanksThatTheyWaitFor) {
  std::atomic<int> seen{0};
  OnRanks(PlacingRanks(4), [&](TestRank& rank) {
    Flight flight(rank, 5000, 1);
    if (rank.rank() == 2) {
      while (seen.load() < 3) rank.Poll();
    }
    flight.Start();
    if (rank.rank() != 2) {
      rank.Drive([&] {
        return rank.executor().AwaitedRanks() == std::vector<int>({2});
      });
      ++seen;
    }
    EXPECT_TRUE(flight.Finish().ok());
    EXPECT_TRUE(rank.executor().AwaitedRanks().empty());
  });
}

// Rank 0 fails at any moment. What the others had completed stays, and the
// memory of all calls is gone at once.
TEST(PlacedCalls, GiveBackTheirMemoryWhenTheJobFails) {
  for (const int size : {2, 3, 5}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      OnRanks(PlacingRanks(size, seed), [&](TestRank& rank) {
        Random random(seed);
        const auto moment = random() % 200;
        std::vector<std::unique_ptr<Flight>> flights;
        for (std::uint64_t i = 0; i < 4; ++i) {
          flights.push_back(
              std::make_unique<Flight>(rank, 1 + random() % 9000, i));
          if (i == 2) flights.back()->call().channel = Channel::kGradients;
          flights.back()->Start();
        }
        std::uint64_t polls = 0;
        rank.Drive([&] {
          if (rank.rank() == 0 && polls++ == moment) {
            rank.fabric().Fail(Status(StatusCode::kAborted, "enough"));
          }
          for (const auto& flight : flights) {
            if (!flight->ending().over()) return false;
          }
          return true;
        });
        for (std::uint64_t i = 0; i < 4; ++i) {
          const Flight& flight = *flights[i];
          const Status& status = flight.ending().status;
          EXPECT_EQ(flight.ending().times, 1);
          if (status.ok()) {
            EXPECT_TRUE(Near(flight.values(),
                             ExactSum(size, flight.values().size(), i, 1.0), 24,
                             4));
          } else {
            EXPECT_EQ(status.message(), "enough");
          }
        }
        flights.clear();
        for (int i = 0; i < 20; ++i) rank.Poll();
        EXPECT_EQ(rank.executor().in_flight(), 0U);
      });
    }
  }
}

// Rank 0 tells rank 1 what no executor would. `good` notices come before the
// one that is refused.
void ExpectRefused(const std::vector<PlacedNotice>& notices, std::size_t good,
                   const std::string& why) {
  std::atomic<bool> told{false};
  OnRanks(PlacingRanks(2), [&](TestRank& rank) {
    if (rank.rank() == 0) {
      const std::byte* memory = rank.places()->slots().data;
      EncodePlacedHeader({0, 1, {}}, rank.places()->slots().data);
      std::size_t bytes = kPlacedHeaderBytes;
      for (const PlacedNotice& notice : notices) {
        const ConstBufferView pieces[] = {{memory, bytes, {}}};
        rank.places()->Put(1, pieces, rank.places()->SlotsOf(1),
                           EncodeNotice(notice), {});
        // The peer may be reading the header by now.
        bytes = 0;
      }
      rank.Drive([&] { return told.load(); });
      return;
    }
    rank.Drive([&] {
      const auto come = rank.places()->counts().notices;
      EXPECT_TRUE(come > good || rank.fabric().status().ok());
      return come == notices.size();
    });
    const Status& status = rank.fabric().status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    ExpectSays(status, "rank 0 ");
    ExpectSays(status, why);
    told = true;
  });
}

TEST(PlacedNotices, ThatMakeNoSenseEndTheJobAndNameTheirRank) {
  const PlacedNotice early = {.generation = 1};
  ExpectRefused({early, early}, 1, "has put a contribution into slot 0");
  ExpectRefused({{.generation = 2}}, 0, "use number 2");
  ExpectRefused({{.generation = 0}}, 0, "is done with use 0");
  ExpectRefused({{.phase = PlacedPhase::kSum, .generation = 1}}, 0,
                "has put a sum");
  ExpectRefused({early, {.slot = 3, .generation = 1}}, 1,
                "slot 3 of rank 1, which has 3");
  for (const int window : {kGroupWindow, kPlacedWindows}) {
    ExpectRefused({early, {.window = window, .generation = 1}}, 1,
                  "slot 0 of rank 1, which exchanges nothing with it");
  }
  ExpectRefused({early, {.generation = kGenerationMask}}, 1,
                StrCat("use number ", kGenerationMask));
}

TEST(PlacedNotices, ComeThroughTheirBits) {
  Random random(5);
  for (int i = 0; i < 10'000; ++i) {
    const auto bits =
        static_cast<std::uint32_t>(random()) & ((1U << kNoticeBits) - 1);
    EXPECT_EQ(EncodeNotice(DecodeNotice(bits)), bits);
  }
}

}  // namespace
}  // namespace gradientflow::testing
