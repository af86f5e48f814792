#include "gradientflow/collectives/staged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_layout.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_flight.h"
#include "tests/collectives/staged_ranks.h"
#include "tests/device/fake_device.h"
#include "tests/transports/thread_places.h"

// Staged allreduces of device memory give the right results, and never block
// the host.
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr FakeLag kLags[] = {FakeLag::kNone, FakeLag::kRandom, FakeLag::kLazy};

FakeOptions Lagging(FakeLag lag, int rank) {
  FakeOptions options;
  options.lag = lag;
  options.seed = static_cast<std::uint64_t>(rank) + 5;
  return options;
}

class Staged : public ::testing::TestWithParam<std::tuple<int, bool, FakeLag>> {
 protected:
  RanksSetup ranks() const {
    RanksSetup setup;
    setup.size = std::get<0>(GetParam());
    setup.memory = std::get<1>(GetParam());
    setup.places = !setup.memory && setup.size > 1;
    return setup;
  }
  void OnDevices(const std::function<void(DeviceRank&)>& body) const {
    OnRanks(ranks(), [&](TestRank& host) {
      DeviceRank rank(host, Lagging(std::get<2>(GetParam()), host.rank()));
      body(rank);
    });
  }
};

TEST_P(Staged, GivesWhatTheHostGives) {
  OnDevices([&](DeviceRank& rank) {
    std::uint64_t seed = 0;
    for (DType dtype : kTypes) {
      for (DType wire : kTypes) {
        for (std::size_t count : {0, 1, 97, 2503, 9001}) {
          for (bool gaps : {false, true}) {
            ++seed;
            Flight flight(
                rank,
                {dtype, wire, seed % 5 == 0 ? ReduceOp::kMax : ReduceOp::kMean,
                 count, gaps},
                seed);
            flight.Start();
            rank.Drive([&] { return flight.ending().over(); });
            flight.Check();
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
    EXPECT_EQ(rank.staged().in_flight(), 0);
    for (const Channel channel : {Channel::kPlain, Channel::kGradients}) {
      EXPECT_EQ(rank.staged().bytes_sent(0, channel),
                rank.host().executor().bytes_sent(0, channel));
      EXPECT_FALSE(rank.staged().Busy(0, channel));
    }
    EXPECT_EQ(rank.slow_copies(), 0);
  });
}

// Staging memory is where the network card reaches, so nothing is copied once
// more on its way to the peers. Sums leave from a copy in any case.
TEST_P(Staged, PlacesMessagesFromTheStagingMemory) {
  if (!ranks().places) return;
  OnDevices([&](DeviceRank& rank) {
    for (const DType wire : kTypes) {
      constexpr std::size_t kCount = 700;  // One segment.
      Flight flight(rank,
                    {DType::kFloat32, wire, ReduceOp::kMean, kCount, true,
                     &allreduce::kGdraa},
                    static_cast<std::uint64_t>(wire) + 1);
      const ThreadPlaces::Counts before = rank.host().places()->counts();
      flight.Start();
      rank.Drive([&] { return flight.ending().over(); });
      const ThreadPlaces::Counts after = rank.host().places()->counts();
      const int size = rank.host().size();
      const std::size_t own = BlockOf(kCount, size, rank.host().rank()).count;
      const auto peers = static_cast<std::size_t>(size - 1);
      EXPECT_EQ(after.from_slots - before.from_slots,
                peers * (kPlacedHeaderBytes + own * SizeOf(wire)));
      EXPECT_EQ(
          after.bytes - before.bytes - (after.from_slots - before.from_slots),
          (kCount - own) * SizeOf(wire));
      flight.Check();
    }
  });
}

TEST_P(Staged, RunsEveryAlgorithm) {
  OnDevices([&](DeviceRank& rank) {
    std::uint64_t seed = 0;
    for (Algorithm algorithm : AlgorithmsFor(ranks())) {
      for (std::size_t count : {331, 7001}) {
        ++seed;
        Flight flight(rank,
                      {DType::kFloat32, DType::kFloat16, ReduceOp::kMean, count,
                       seed % 2 == 0, algorithm},
                      seed);
        flight.Start();
        rank.Drive([&] { return flight.ending().over(); });
        flight.Check();
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

// More calls than staging memory has room for, in both channels; only the calls
// of one channel are started in the same order on all ranks.
TEST_P(Staged, RunsManyCallsAtOnce) {
  OnDevices([&](DeviceRank& rank) {
    std::mt19937_64 random(11);
    std::vector<std::unique_ptr<Flight>> flights[kChannels];
    for (int i = 0; i < 24; ++i) {
      StagedCase c;
      c.dtype = kTypes[random() % 3];
      c.wire = kTypes[random() % 3];
      c.count = random() % 9000;
      c.gaps = random() % 3 == 0;
      const auto channel = random() % kChannels;
      c.channel = static_cast<Channel>(channel);
      flights[channel].push_back(
          std::make_unique<Flight>(rank, c, static_cast<std::uint64_t>(i + 1)));
    }
    std::size_t started[kChannels] = {0, 0};
    std::mt19937_64 order(static_cast<std::uint64_t>(rank.host().rank()));
    const auto over = [&] {
      std::size_t left = 0;
      for (std::size_t c = 0; c < kChannels; ++c) {
        if (started[c] < flights[c].size()) {
          ++left;
          if (order() % 2 == 0) flights[c][started[c]++]->Start();
        }
        for (const auto& flight : flights[c]) left += !flight->ending().over();
      }
      return left == 0;
    };
    rank.Drive(over);
    for (const auto& channel : flights) {
      for (const auto& flight : channel) flight->Check();
    }
    // Three quarters are for gradients; plain calls grew to the largest of
    // them.
    EXPECT_LE(rank.staged().staging_bytes(),
              SmallStaging().staging_bytes / 4 * 3 + 9000 * sizeof(float));
  });
}

TEST_P(Staged, NeitherAllocatesNorWaitsOnceWarm) {
  OnDevices([&](DeviceRank& rank) {
    std::vector<std::unique_ptr<Flight>> flights;
    for (std::size_t i = 0; i < 9; ++i) {
      flights.push_back(std::make_unique<Flight>(
          rank,
          StagedCase{kTypes[i % 3], kTypes[i / 3], ReduceOp::kMean,
                     900 + 1301 * i, i % 2 == 0},
          i + 1));
    }
    FakeDevice& device = rank.device();
    const auto made = [&] {
      std::vector<std::uint64_t> counts;
      for (FakeCall call : {FakeCall::kAllocate, FakeCall::kAllocatePinned,
                            FakeCall::kRegisterHost, FakeCall::kNewStream,
                            FakeCall::kNewEvent, FakeCall::kSynchronize}) {
        counts.push_back(device.count(call));
      }
      return counts;
    };
    std::vector<std::uint64_t> warm;
    for (int round = 0; round < 4; ++round) {
      for (auto& flight : flights) flight->Restart();
      rank.Drive([&] {
        return std::all_of(flights.begin(), flights.end(),
                           [](const auto& f) { return f->ending().over(); });
      });
      if (round == 0) warm = made();
      EXPECT_EQ(made(), warm) << "round " << round;
    }
    for (auto& flight : flights) flight->Check();
  });
}

std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<int, bool, FakeLag>>& info) {
  constexpr const char* kLagNames[] = {"", "random", "lazy"};
  return StrCat(std::get<1>(info.param) ? "memory" : "messages",
                std::get<0>(info.param),
                kLagNames[static_cast<int>(std::get<2>(info.param))]);
}
INSTANTIATE_TEST_SUITE_P(Ranks, Staged,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Bool(),
                                            ::testing::ValuesIn(kLags)),
                         ParamName);

TEST(StagedMixed, RanksOnTheHostAndOnDevicesAgree) {
  for (bool memory : {true, false}) {
    RanksSetup setup = {5, memory};
    setup.same_dtypes = false;
    setup.places = !memory;
    for (Algorithm algorithm : AlgorithmsFor(setup)) {
      const StagedCase c = {
          DType::kFloat32, DType::kFloat16, ReduceOp::kMean, 6007, true,
          algorithm};
      std::vector<std::vector<std::byte>> results(5);
      const std::uint64_t place = HashOf({{10, c.count}});
      OnRanks(setup, [&](TestRank& host) {
        if (host.rank() % 2 == 0) {
          DeviceRank rank(host);
          Flight flight(rank, c, 3);
          flight.call().place = place;
          flight.Start();
          rank.Drive([&] { return flight.ending().over(); });
          EXPECT_TRUE(flight.ending().status.ok())
              << flight.ending().status.ToString();
          results[host.rank()] = flight.Packed();
          return;
        }
        std::vector<std::byte> pool =
            Encode(c.dtype, Contribution(host.rank(), c.count, 3));
        CollectiveCall call;
        call.output = pool.data();
        call.place = place;
        call.count = c.count;
        call.wire = c.wire;
        call.op = c.op;
        call.scale = 0.5F;
        call.algorithm = c.algorithm;
        call.channel = c.channel;
        call.step = 7;
        call.bucket = 3;
        Ending ending;
        host.executor().Start(call, ending.done());
        host.Drive([&] { return ending.over(); });
        EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
        results[host.rank()] = pool;
      });
      for (int r = 1; r < 5; ++r) {
        ASSERT_TRUE(results[r] == results[0]) << Name(algorithm) << " " << r;
      }
      EXPECT_TRUE(Near(Decode(c.dtype, results[0].data(), c.count),
                       ExactSum(5, c.count, 3, 0.1), 11, 9))
          << Name(algorithm);
    }
  }
}

TEST(StagedNonfinite, IsKnownOnAllRanks) {
  struct Bad {
    DType dtype;
    DType wire;
    float value;  // On one rank,
    float rest;   // on the others.
  };
  const Bad bads[] = {
      {DType::kFloat32, DType::kFloat16, 1e30F, 1.0F},
      {DType::kFloat32, DType::kFloat32, std::numeric_limits<float>::infinity(),
       1.0F},
      // The wire can hold the sum, the pool cannot.
      {DType::kFloat16, DType::kFloat32, 65000.0F, 65000.0F},
      {DType::kFloat16, DType::kBFloat16, 65000.0F, 65000.0F},
  };
  for (int size : {1, 2, 3}) {
    OnRanks({size, true}, [&](TestRank& host) {
      DeviceRank rank(host);
      for (int who = 0; who < size; ++who) {
        for (const Bad& bad : bads) {
          std::vector<float> values(3001, 0.25F);
          values[2999] = host.rank() == who ? bad.value : bad.rest;
          const std::vector<std::byte> bytes = Encode(bad.dtype, values);
          const DeviceMemory memory = rank.Upload(bytes);
          CollectiveCall call;
          call.output = memory.get();
          call.count = values.size();
          call.dtype = bad.dtype;
          call.wire = bad.wire;
          call.scale = 2.0F;
          const Ending ending = rank.Run(call);
          EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
          EXPECT_TRUE(ending.nonfinite)
              << bad.value << " as " << Name(bad.dtype) << " on rank " << who
              << ", seen by " << host.rank() << " of " << size;
          // The next call is not affected.
          values[2999] = 1.0F;
          const std::vector<std::byte> good = Encode(bad.dtype, values);
          rank.Write(memory.get(), good);
          EXPECT_FALSE(rank.Run(call).nonfinite);
        }
      }
    });
  }
}

}  // namespace
}  // namespace gradientflow::testing
