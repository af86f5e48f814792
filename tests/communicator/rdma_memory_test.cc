#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <vector>

#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "tests/communicator/ranks.h"
#include "tests/rdma/fake_verbs.h"

// What ranks have registered with their cards beyond the memory of the
// application, counted by the fake cards.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

struct Segments {
  std::size_t bytes;
  int in_flight;
};

class RdmaMemory : public ::testing::TestWithParam<Segments> {};

// The sum needs more slots than there are, of whichever size.
TEST_P(RdmaMemory, EachOf8RanksRegisters64MegabytesAtMost) {
  constexpr int kRanks = 8;
  constexpr std::size_t kFloats = 5 * kMiB;
  CommJob job;
  job.size = kRanks;
  job.over = Over::kRdma;
  job.options.segment_bytes = GetParam().bytes;
  job.options.segments_in_flight = GetParam().in_flight;
  job.options.algorithm = "gdraa";
  std::barrier<> done(kRanks);
  RunRanks(job, [&](Communicator& comm) {
    std::vector<float> data(kFloats, 1);
    CollectiveCall sum;
    sum.output = data.data();
    sum.count = data.size();
    EXPECT_TRUE(comm.Run(sum).ok());
    EXPECT_EQ(data, std::vector<float>(kFloats, kRanks));
    done.arrive_and_wait();
    // All cards are of one host.
    const FakeVerbsStats stats = CardsOfRanks()->stats(0);
    EXPECT_LE(stats.most_registered_bytes, kRanks * std::size_t{64'000'000});
    EXPECT_GT(stats.registered_bytes, kRanks * 8 * kMiB);
    done.arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Of, RdmaMemory,
                         ::testing::Values(Segments{256 * kKiB, 8},
                                           Segments{256 * kKiB, 64},
                                           Segments{kMiB, 8},
                                           Segments{kMiB, 64},
                                           Segments{64 * kMiB, 64}));

}  // namespace
}  // namespace gradientflow::testing
