#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"
#include "transports/arena.h"

// Allreduces of two levels on hosts with several ranks each: shared memory
// inside, and between hosts rails whose messages are placed.
namespace gradientflow::testing {
namespace {

RanksSetup Hosts(int ranks, int ranks_per_host) {
  RanksSetup setup;
  setup.size = ranks;
  setup.ranks_per_host = ranks_per_host;
  setup.places = true;
  return setup;
}

// Links by which it is fastest to place the messages of about 2000 floats on
// two rails. Fewer go in one round, all to all.
CostModels CostsOfRails() {
  CostModel model;
  model.across.seconds_per_byte = 1e-9;
  model.across.latency_seconds = 4e-6;
  return {model, model};
}

// A buffer, which may be in the memory of this rank's host, and which the
// network may reach.
class Buffer {
 public:
  Buffer(TestRank& rank, const std::vector<std::byte>& values, unsigned where)
      : rank_(rank), bytes_(values.size()) {
    if ((where & 1) != 0) {
      shared_ = rank.arena()->Allocate(bytes_ + 1).value();
    } else {
      own_.resize(bytes_ + 1);
    }
    std::memcpy(data(), values.data(), bytes_);
    reached_ = (where & 2) != 0;
    if (reached_) rank.places()->Register(data(), bytes_ + 1);
  }
  ~Buffer() {
    if (reached_) rank_.places()->Deregister(data());
    if (shared_.data != nullptr) rank_.arena()->Free(shared_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() {
    return shared_.data != nullptr ? shared_.data : own_.data();
  }
  std::vector<std::byte> values() { return {data(), data() + bytes_}; }

 private:
  TestRank& rank_;
  const std::size_t bytes_;
  std::vector<std::byte> own_;
  BufferView shared_ = {};
  bool reached_ = false;
};

struct RailCase {
  std::size_t count = 0;
  DType pool = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

RailCase RandomCase(std::mt19937* random) {
  RailCase c;
  const auto kind = (*random)() % 4;
  if (kind == 0) c.pool = c.wire = DType::kFloat16;
  if (kind == 1) c.wire = DType::kFloat16;
  if ((*random)() % 2 == 0) c.op = ReduceOp::kMean;
  const std::size_t most = (*random)() % 4 == 0 ? 9000 : 2100;
  c.count = (*random)() % most + (most > 5000 ? 1 : 200);
  return c;
}

CollectiveCall CallOf(const RailCase& c, std::byte* data) {
  CollectiveCall call;
  call.output = data;
  call.count = c.count;
  call.dtype = c.pool;
  call.wire = c.wire;
  call.op = c.op;
  call.algorithm = &allreduce::kTwoLevel;
  return call;
}

// What each rank has after each of the cases; up to four are in flight.
std::vector<std::vector<std::vector<std::byte>>> RunAll(
    const RanksSetup& setup, const std::vector<RailCase>& cases,
    std::vector<ThreadPlaces::Counts>* counts) {
  const auto ranks = static_cast<std::size_t>(setup.size);
  std::vector<std::vector<std::vector<std::byte>>> results(ranks);
  counts->resize(ranks);
  OnRanks(setup, [&](TestRank& rank) {
    rank.executor().SetCosts(CostsOfRails());
    const auto me = static_cast<std::size_t>(rank.rank());
    for (std::size_t begin = 0; begin < cases.size(); begin += 4) {
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<Ending> endings(4);
      for (std::size_t i = begin; i < begin + 4 && i < cases.size(); ++i) {
        const auto values = Contribution(rank.rank(), cases[i].count, i);
        buffers.push_back(
            std::make_unique<Buffer>(rank, Encode(cases[i].pool, values),
                                     static_cast<unsigned>(i + me)));
        rank.executor().Start(CallOf(cases[i], buffers.back()->data()),
                              endings[i - begin].done());
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        rank.Drive([&] { return endings[i].over(); });
        ASSERT_TRUE(endings[i].status.ok()) << endings[i].status.ToString();
        results[me].push_back(buffers[i]->values());
      }
    }
    const ThreadPlaces::Counts& seen = rank.places()->counts();
    rank.Drive([&] { return seen.done == seen.puts; });
    (*counts)[me] = seen;
  });
  return results;
}

TEST(PlacedRails, GiveTheSumAndTheSameBitsOnAllRanks) {
  for (const auto& [ranks, per_host] :
       {std::pair{6, 2}, std::pair{8, 2}, std::pair{9, 3}, std::pair{8, 3}}) {
    for (const int window : {1, 2, 8}) {
      RanksSetup setup = Hosts(ranks, per_host);
      setup.segments_in_flight = window;
      setup.seed = static_cast<std::uint64_t>(ranks * 10 + window);
      std::mt19937 random(static_cast<unsigned>(setup.seed));
      std::vector<RailCase> cases;
      for (int i = 0; i < 40; ++i) cases.push_back(RandomCase(&random));
      std::vector<ThreadPlaces::Counts> counts;
      const auto results = RunAll(setup, cases, &counts);
      ASSERT_FALSE(HasFailure()) << Describe(setup);
      EXPECT_GT(counts[0].puts, 20U) << "hardly anything was placed";
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const RailCase& c = cases[i];
        for (const auto& of_rank : results) {
          ASSERT_EQ(of_rank[i], results[0][i]) << Describe(setup) << " " << i;
        }
        const double factor = c.op == ReduceOp::kMean ? 1.0 / ranks : 1.0;
        EXPECT_TRUE(Near(Decode(c.pool, results[0][i].data(), c.count),
                         ExactSum(ranks, c.count, i, factor),
                         std::min(Precision(c.pool), Precision(c.wire)), 8))
            << Describe(setup) << ": " << c.count << " " << Name(c.pool)
            << " as " << Name(c.wire);
      }
    }
  }
}

// Two messages to each other host's rank of the rail, and no others. A rank on
// no rail places nothing.
TEST(PlacedRails, SendTwoMessagesToEachOtherHost) {
  constexpr std::uint64_t kCalls = 20;
  const std::vector<RailCase> cases(kCalls, RailCase{2000});
  for (const auto& [ranks, per_host, hosts] :
       {std::tuple{6, 2, 3}, std::tuple{8, 2, 4}, std::tuple{8, 3, 3}}) {
    std::vector<ThreadPlaces::Counts> counts;
    RunAll(Hosts(ranks, per_host), cases, &counts);
    for (int r = 0; r < ranks; ++r) {
      const bool on_rail = r % per_host < 2;
      const auto& seen = counts[static_cast<std::size_t>(r)];
      const std::uint64_t expected =
          on_rail ? 2 * kCalls * static_cast<std::uint64_t>(hosts - 1) : 0;
      EXPECT_EQ(seen.puts, expected) << r;
      EXPECT_EQ(seen.notices, expected) << r;
      EXPECT_EQ(seen.messages, 0U) << r;
    }
  }
}

TEST(PlacedRails, AllRanksLearnOfAResultThatIsNotFinite) {
  for (int who = 0; who < 8; ++who) {
    OnRanks(Hosts(8, 3), [&](TestRank& rank) {
      rank.executor().SetCosts(CostsOfRails());
      std::vector<float> values(2000, 1.0F);
      if (rank.rank() == who) {
        values[static_cast<std::size_t>(who) * 249] =
            std::numeric_limits<float>::infinity();
      }
      Buffer buffer(rank, Encode(DType::kFloat32, values), 0);
      Ending ending;
      rank.executor().Start(CallOf({2000}, buffer.data()), ending.done());
      rank.Drive([&] { return ending.over(); });
      EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
      EXPECT_TRUE(ending.nonfinite) << "rank " << rank.rank();
    });
  }
}

TEST(PlacedRails, ARankThatMakesAnotherCallIsNoticed) {
  for (int who = 0; who < 6; ++who) {
    OnRanks(Hosts(6, 2), [&](TestRank& rank) {
      rank.executor().SetCosts(CostsOfRails());
      std::vector<float> values(2000, 1.0F);
      CollectiveCall call =
          CallOf({2000}, reinterpret_cast<std::byte*>(values.data()));
      if (rank.rank() == who) call.scale = 2.0F;
      Ending ending;
      rank.executor().Start(call, ending.done());
      rank.Drive([&] { return ending.over(); });
      EXPECT_EQ(ending.status.code(), StatusCode::kInvalidArgument)
          << ending.status.ToString();
    });
  }
}

// A job ends in the middle of its calls; no memory may be touched afterwards.
TEST(PlacedRails, EndWithTheJob) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    RanksSetup setup = Hosts(6, 2);
    setup.seed = seed;
    const int who = static_cast<int>(seed % 6);
    OnRanks(setup, [&](TestRank& rank) {
      rank.executor().SetCosts(CostsOfRails());
      std::mt19937 random(static_cast<unsigned>(seed) * 10 +
                          static_cast<unsigned>(rank.rank()));
      Status status;
      for (unsigned i = 0; status.ok(); ++i) {
        Buffer buffer(
            rank, Encode(DType::kFloat32, Contribution(rank.rank(), 2000, i)),
            i + static_cast<unsigned>(rank.rank()));
        Ending ending;
        rank.executor().Start(CallOf({2000}, buffer.data()), ending.done());
        if (rank.rank() == who && i == 5 + seed % 3) {
          for (auto n = random() % 30; n > 0; --n) rank.Poll();
          rank.fabric().Fail(Status(StatusCode::kAborted, "enough"));
        }
        rank.Drive([&] { return ending.over(); });
        status = ending.status;
      }
      EXPECT_NE(status.message().find("enough"), std::string::npos)
          << status.ToString();
    });
  }
}

}  // namespace
}  // namespace gradientflow::testing
