#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/communicator/inproc.h"
#include "tests/communicator/placed_transport.h"
#include "tests/transports/thread_places.h"

// Communicators on a network with places, and their agreement whether to use
// them.
namespace gradientflow::testing {
namespace {

constexpr int kRanks = 3;

Options OptionsOf(int rank) {
  Options options;
  options.rank = rank;
  options.size = kRanks;
  options.rendezvous = "file:///in-process";
  options.log_level = LogLevel::kError;
  options.algorithm = "gdraa";
  options.segment_bytes = 4096;
  options.timeout_seconds = 60;
  return options;
}

using Opened = Result<std::shared_ptr<Communicator>>;

// Opens one communicator on each rank, with what `adapt` has changed of its
// transport. Returns what each rank has put in the end.
std::vector<std::uint64_t> OnAll(
    const std::function<void(Transport*)>& adapt,
    const std::function<void(int, const Opened&)>& body) {
  const SteadyClock clock;
  const auto network = PlacesNetworkFor(OptionsOf(0), 1);
  const auto group =
      InprocGroup::Create(kRanks, {std::size_t{1} << 20, 65536}).value();
  std::barrier<> through(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Result<Transport> transport =
          PlacedTransport(group, network, OptionsOf(r), clock);
      ASSERT_TRUE(transport.ok());
      adapt(&transport.value());
      const Opened comm = OpenOver(std::move(transport).value(), OptionsOf(r));
      body(r, comm);
      through.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(network->error(), "");
  std::vector<std::uint64_t> puts;
  for (int r = 0; r < kRanks; ++r) {
    puts.push_back(network->places(r).counts().puts);
  }
  return puts;
}

// The sum of ones over the ranks of a group, in five segments.
void Sum(Communicator& comm, GroupId group, float expected) {
  std::vector<float> ones(5000, 1.0F);
  CollectiveCall call;
  call.output = ones.data();
  call.count = ones.size();
  call.group = group;
  const Status status = comm.Run(call);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(ones, std::vector<float>(5000, expected));
}

// In each segment, two to each of two peers.
TEST(PlacedCommunicator, PlacesTheMessagesOfAllRanksButNotThoseOfSome) {
  const auto puts =
      OnAll([](Transport*) {},
            [&](int rank, const Opened& comm) {
              ASSERT_TRUE(comm.ok()) << comm.status().ToString();
              Sum(*comm.value(), 0, 3.0F);
              if (rank == 1) return;
              const Status opened = comm.value()->OpenGroup(7, {0, 2});
              ASSERT_TRUE(opened.ok()) << opened.ToString();
              Sum(*comm.value(), 7, 2.0F);
            });
  EXPECT_EQ(puts, std::vector<std::uint64_t>(kRanks, 5 * 2 * 2));
}

// The links of one rank did not do what they promised.
TEST(PlacedCommunicator, PlacesNothingIfOneRankCannot) {
  for (const int who : {0, 1, 2}) {
    const auto puts = OnAll(
        [&](Transport* transport) {
          if (transport->group.rank == who) transport->places_all = false;
        },
        [&](int, const Opened& comm) {
          ASSERT_TRUE(comm.ok()) << comm.status().ToString();
          Sum(*comm.value(), 0, 3.0F);
        });
    EXPECT_EQ(puts, std::vector<std::uint64_t>(kRanks, 0));
  }
}

TEST(PlacedCommunicator, DoesNotOpenWithTheAlgorithmWherePlacesAreMissing) {
  OnAll(
      [](Transport* transport) {
        transport->places = nullptr;
        transport->places_all = false;
        transport->group.all_place = false;
      },
      [&](int, const Opened& comm) {
        EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument);
        EXPECT_NE(comm.status().message().find(
                      "allreduce algorithm gdraa needs ranks that can all "
                      "write into each other's memory (RDMA); use auto"),
                  std::string::npos)
            << comm.status().ToString();
      });
}

}  // namespace
}  // namespace gradientflow::testing
