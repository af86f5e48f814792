#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/staged.h"
#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_flight.h"
#include "tests/collectives/staged_ranks.h"
#include "tests/device/fake_device.h"
#include "tests/transports/thread_places.h"

// Allreduces of device memory that the network card reads and writes itself.
// What it writes is not there before the device is told to wait for it.
namespace gradientflow::testing {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// What this rank adds up of a call: a fair share, but for a rest per segment.
std::size_t OwnElements(TestRank& rank, const CollectiveCall& call) {
  std::vector<Extent> parts;
  EXPECT_TRUE(rank.executor().OwnParts(call, &parts));
  std::size_t own = 0;
  std::size_t end = 0;
  for (const Extent& part : parts) {
    EXPECT_GE(part.begin, end);
    own += part.count;
    end = part.begin + part.count;
  }
  EXPECT_LE(end, call.count);
  const std::size_t share = call.count / static_cast<std::size_t>(rank.size());
  EXPECT_LE(own, share + parts.size());
  EXPECT_GE(own + parts.size() + 1, share);
  return own;
}

class StagedDirect : public ::testing::TestWithParam<std::tuple<int, FakeLag>> {
 protected:
  static RanksSetup Ranks(int size) {
    RanksSetup setup;
    setup.size = size;
    setup.memory = false;
    setup.places = true;
    return setup;
  }
  // With a device whose flush does `flush`, or what it should if that is empty.
  void OnDevices(const std::function<void(DeviceRank&)>& body,
                 const std::function<Status(TestRank&)>& flush = {}) const {
    OnRanks(Ranks(std::get<0>(GetParam())), [&](TestRank& host) {
      FakeOptions options;
      options.lag = std::get<1>(GetParam());
      options.seed = static_cast<std::uint64_t>(host.rank()) + 5;
      options.dma_buf = true;
      options.flush = [&] {
        if (flush) return flush(host);
        host.places()->Flush();
        return Status();
      };
      DeviceRank rank(host, options);
      body(rank);
      if (flush) return;  // Of a job that may have failed.
      EXPECT_EQ(host.network().error(), "");
    });
  }
};

TEST_P(StagedDirect, GivesWhatTheHostGives) {
  OnDevices([&](DeviceRank& rank) {
    std::uint64_t seed = 0;
    for (DType dtype : kTypes) {
      for (std::size_t count : {1, 2, 97, 2503, 9001, 20011}) {
        Flight flight(rank,
                      {.dtype = dtype,
                       .wire = dtype,
                       .count = count,
                       .algorithm = &allreduce::kGdraa,
                       .attached = true},
                      ++seed);
        flight.Start();
        rank.Drive([&] { return flight.ending().over(); });
        EXPECT_EQ(rank.device().count(FakeCall::kFlushRemoteWrites), seed);
        flight.Check();
        if (::testing::Test::HasFailure()) return;
      }
    }
    EXPECT_EQ(rank.slow_copies(), 0);
  });
}

// What has gaps or another type is packed where the card reaches it.
TEST_P(StagedDirect, GivesWhatTheHostGivesOfImages) {
  OnDevices([&](DeviceRank& rank) {
    std::uint64_t seed = 0;
    for (DType dtype : kTypes) {
      for (DType wire : kTypes) {
        for (std::size_t count : {1, 2, 97, 2503, 9001}) {
          for (const bool gaps : {false, true}) {
            Flight flight(rank,
                          {.dtype = dtype,
                           .wire = wire,
                           .count = count,
                           .gaps = gaps,
                           .algorithm = &allreduce::kGdraa},
                          ++seed);
            flight.Start();
            rank.Drive([&] { return flight.ending().over(); });
            flight.Check();
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
    EXPECT_GE(rank.device().count(FakeCall::kFlushRemoteWrites), seed);
    EXPECT_EQ(rank.slow_copies(), 0);
  });
}

// The card has the contributions from the device and puts the sums there. The
// bus carries nothing else but this rank's own block, to the host and back.
TEST_P(StagedDirect, CopiesOnlyTheOwnBlock) {
  OnDevices([&](DeviceRank& rank) {
    for (std::size_t count : {1, 3, 2503, 9001}) {
      const bool packed = count == 2503;  // To half the bytes.
      const DType wire = packed ? DType::kFloat16 : DType::kFloat32;
      Flight flight(rank,
                    {.dtype = DType::kFloat32,
                     .wire = wire,
                     .count = count,
                     .gaps = packed,
                     .algorithm = &allreduce::kGdraa,
                     .attached = !packed},
                    count);
      const std::size_t own = OwnElements(rank.host(), flight.call());
      const std::uint64_t crossed = rank.device().bus_bytes();
      const ThreadPlaces::Counts before = rank.host().places()->counts();
      flight.Start();
      rank.Drive([&] { return flight.ending().over(); });
      const ThreadPlaces::Counts after = rank.host().places()->counts();
      EXPECT_EQ(rank.device().bus_bytes() - crossed, 2 * own * SizeOf(wire));
      EXPECT_EQ(after.from_device - before.from_device,
                (count - own) * SizeOf(wire));
      flight.Check();
    }
  });
}

// Buffers and images that the card reaches, and, with other algorithms or
// where images are refused, staging: on some of the ranks or on all.
TEST_P(StagedDirect, MixesWithWhatIsStaged) {
  OnDevices([&](DeviceRank& rank) {
    std::mt19937_64 random(11);
    std::mt19937_64 own(static_cast<std::uint64_t>(rank.host().rank()));
    std::vector<std::unique_ptr<Flight>> flights[kChannels];
    for (int i = 0; i < 40; ++i) {
      StagedCase c;
      c.dtype = kTypes[random() % 3];
      c.wire = random() % 3 == 0 ? kTypes[random() % 3] : c.dtype;
      c.count = 1 + random() % 9000;
      c.gaps = random() % 4 == 0;
      if (random() % 4 != 0) c.algorithm = &allreduce::kGdraa;
      const auto channel = random() % kChannels;
      c.channel = static_cast<Channel>(channel);
      c.attached = own() % 4 != 0;
      flights[channel].push_back(
          std::make_unique<Flight>(rank, c, static_cast<std::uint64_t>(i + 1)));
    }
    if (rank.host().rank() == 1) {
      rank.device().FailCall(FakeCall::kExportDmaBuf, 0,
                             Status(StatusCode::kUnimplemented, "no image"));
    }
    std::size_t started[kChannels] = {0, 0};
    rank.Drive([&] {
      std::size_t left = 0;
      for (std::size_t c = 0; c < kChannels; ++c) {
        if (started[c] < flights[c].size()) {
          ++left;
          if (own() % 2 == 0) flights[c][started[c]++]->Start();
        }
        for (const auto& flight : flights[c]) left += !flight->ending().over();
      }
      return left == 0;
    });
    for (const auto& channel : flights) {
      for (const auto& flight : channel) flight->Check();
    }
    // Calls await what was written at most once, and each image is tried out
    // with one more.
    const std::size_t awaited =
        rank.device().count(FakeCall::kFlushRemoteWrites);
    EXPECT_GT(rank.host().places()->counts().from_device, 0);
    EXPECT_LE(awaited, 40 + rank.device().count(FakeCall::kAllocate));
    EXPECT_EQ(rank.slow_copies(), 0);
  });
}

// The card must not read what the device has yet to write.
TEST_P(StagedDirect, PutsNothingBeforeTheDeviceHasWrittenIt) {
  OnDevices([&](DeviceRank& rank) {
    rank.device().HoldStreams();
    Flight flight(rank,
                  {.dtype = DType::kFloat32,
                   .wire = DType::kFloat32,
                   .count = 5000,
                   .algorithm = &allreduce::kGdraa,
                   .attached = true},
                  17);
    flight.Start();
    int polls = 0;
    rank.Drive([&] { return ++polls > 200; });
    EXPECT_EQ(rank.host().places()->counts().puts, 0);
    rank.device().ReleaseStreams();
    rank.Drive([&] { return flight.ending().over(); });
    flight.Check();
  });
}

// The flush is what the other tests would find missing.
TEST_P(StagedDirect, SumsOfPeersAreThereOnlyAfterTheFlush) {
  OnDevices(
      [&](DeviceRank& rank) {
        constexpr std::size_t kCount = 900;
        Flight flight(rank,
                      {.dtype = DType::kFloat32,
                       .wire = DType::kFloat32,
                       .count = kCount,
                       .algorithm = &allreduce::kGdraa,
                       .attached = true},
                      3);
        flight.Start();
        rank.Drive([&] { return flight.ending().over(); });
        ASSERT_TRUE(flight.ending().status.ok());
        const auto unflushed = flight.Packed();
        rank.host().places()->Flush();
        const auto flushed = flight.Packed();
        const Extent own =
            BlockOf(kCount, rank.host().size(), rank.host().rank());
        for (std::size_t i = 0; i < kCount; ++i) {
          const bool mine = i >= own.begin && i < own.begin + own.count;
          const auto at = static_cast<std::ptrdiff_t>(i * sizeof(float));
          const bool same = std::equal(
              flushed.begin() + at,
              flushed.begin() + at + static_cast<std::ptrdiff_t>(sizeof(float)),
              unflushed.begin() + at);
          ASSERT_EQ(same, mine) << i;
        }
        flight.Check();
      },
      [](TestRank&) { return Status(); });
}

TEST_P(StagedDirect, AFlushThatFailsEndsTheJobOnAllRanks) {
  OnDevices(
      [&](DeviceRank& rank) {
        Ending last;
        for (std::uint64_t seed = 1; seed < 100 && last.status.ok(); ++seed) {
          Flight flight(rank,
                        {.dtype = DType::kFloat16,
                         .wire = DType::kFloat16,
                         .count = 3001,
                         .algorithm = &allreduce::kGdraa,
                         .attached = true},
                        seed);
          flight.Start();
          rank.Drive([&] { return flight.ending().over(); });
          last = flight.ending();
          // A call that the failure ends at once has not awaited its upload.
          EXPECT_TRUE(rank.work().Synchronize().ok());
        }
        EXPECT_THAT(last.status.message(),
                    ::testing::HasSubstr("awaiting what RDMA wrote to it: the "
                                         "device is gone"));
        EXPECT_THAT(last.status.message(), ::testing::HasSubstr("rank 1"));
      },
      [](TestRank& host) {
        host.places()->Flush();
        return host.rank() == 1
                   ? Status(StatusCode::kUnavailable, "the device is gone")
                   : Status();
      });
}

std::string RanksAndLag(
    const ::testing::TestParamInfo<std::tuple<int, FakeLag>>& info) {
  constexpr const char* kLags[] = {"None", "Random", "Lazy"};
  return StrCat(std::get<0>(info.param), "Ranks",
                kLags[static_cast<int>(std::get<1>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StagedDirect,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::Values(FakeLag::kNone,
                                                              FakeLag::kRandom,
                                                              FakeLag::kLazy)),
                         RanksAndLag);

}  // namespace
}  // namespace gradientflow::testing
