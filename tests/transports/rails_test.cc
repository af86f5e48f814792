#include "transports/tcp/rails.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"
#include "transports/link.h"

// How a link divides its messages among networks. Two loopback addresses stand
// for two networks, and the kernel paces what leaves for each.
namespace gradientflow {
namespace {

using testing::Drive;
using testing::LinkOwner;

constexpr std::size_t kBytes = 64 << 10;
constexpr std::size_t kWindow = 8;

// Ranks 0 and 1, linked by a control lane and one data lane for each address.
struct Pair {
  explicit Pair(const std::vector<const char*>& networks) {
    std::vector<Socket> left, right;
    const auto add = [&](const char* at) {
      auto made = tcp_test::MakeConnection(at);
      ASSERT_TRUE(made.has_value()) << at;
      data.push_back(made->one.fd());
      left.push_back(std::move(made->one));
      right.push_back(std::move(made->other));
    };
    add(networks.front());
    data.clear();
    for (const char* at : networks) add(at);
    a.TakeOne(tcp_test::MakeLink(1, std::move(left), &a));
    b.TakeOne(tcp_test::MakeLink(1, std::move(right), &b));
  }

  // Data lane `lane`, from 1, carries no more than this from now on.
  void Pace(int lane, std::uint64_t bytes_per_second) {
    ASSERT_EQ(::setsockopt(data[static_cast<std::size_t>(lane - 1)], SOL_SOCKET,
                           SO_MAX_PACING_RATE, &bytes_per_second,
                           sizeof(bytes_per_second)),
              0);
  }

  // Sends `count` messages with a few under way at a time, and returns how many
  // went on each lane.
  std::vector<int> Exchange(std::size_t count) {
    std::vector<int> carried(static_cast<std::size_t>(a.to(1).lanes()));
    const std::size_t begin = b.received.size();
    for (std::size_t i = 0; i < count; ++i) {
      const int lane = a.to(1).DataLane(i);
      ++carried[static_cast<std::size_t>(lane)];
      a.Send(1, i, kBytes, lane);
      EXPECT_TRUE(Drive(
          {&a, &b}, [&] { return b.received.size() + kWindow > begin + i; }));
    }
    EXPECT_TRUE(
        Drive({&a, &b}, [&] { return b.received.size() == begin + count; }));
    for (const testing::Received& message : b.received) {
      EXPECT_TRUE(Intact(message));
    }
    return carried;
  }

  LinkOwner a;
  LinkOwner b;
  std::vector<int> data;
};

// The lanes of six messages of the same spread that all wait at `end`.
std::vector<int> LanesOfWaiting(LinkOwner& end) {
  std::vector<int> lanes;
  for (std::uint64_t i = 0; i < 6; ++i) {
    lanes.push_back(end.to(1).DataLane(4));
    end.Send(1, i, kBytes, lanes.back());
  }
  return lanes;
}

TEST(Rails, LanesOfOneNetworkAreFixed) {
  Pair pair({"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"});
  EXPECT_EQ(pair.Exchange(9), (std::vector<int>{0, 3, 3, 3}));
  EXPECT_EQ(LanesOfWaiting(pair.a), std::vector<int>(6, 2));
  EXPECT_EQ(pair.b.to(1).LaneToLook(4), 2);
}

TEST(Rails, BothEndsChooseAmongLanesOfTwoNetworks) {
  Pair pair({"127.0.0.1:0", "127.0.0.2:0"});
  const std::vector<int> in_turn = {1, 2, 1, 2, 1, 2};
  EXPECT_EQ(LanesOfWaiting(pair.a), in_turn);
  EXPECT_EQ(LanesOfWaiting(pair.b), in_turn);
  EXPECT_EQ(pair.b.to(1).LaneToLook(4), -1) << "the peer chooses";
}

TEST(Rails, EachGetsWhatItCarries) {
  Pair pair({"127.0.0.1:0", "127.0.0.2:0"});
  pair.Pace(1, 4 << 20);
  pair.Pace(2, 12 << 20);
  const std::vector<int> carried = pair.Exchange(80);
  EXPECT_EQ(carried[0], 0);
  EXPECT_GT(carried[1], 5);
  EXPECT_GT(carried[2], 3 * carried[1] / 2);
}

// `mib_per_second` of each rail, after enough bytes to judge it.
std::vector<RailRate> Rates(const std::vector<std::uint64_t>& mib_per_second) {
  std::vector<RailRate> rates;
  for (const std::uint64_t rate : mib_per_second) {
    rates.push_back({4 << 20, rate << 20, true});
  }
  return rates;
}

std::vector<bool> Slow(const SlowRails& rails, std::size_t count) {
  std::vector<bool> slow;
  for (std::size_t i = 0; i < count; ++i) slow.push_back(rails[i]);
  return slow;
}

TEST(SlowRails, AreThoseBelowAQuarterOfTheBestThreeTimesInSuccession) {
  SlowRails rails(3);
  for (int look = 0; look < 2; ++look) rails.Look(Rates({64, 15, 16}));
  rails.Look(Rates({64, 17, 16}));
  for (int look = 0; look < 2; ++look) rails.Look(Rates({64, 15, 16}));
  EXPECT_EQ(Slow(rails, 3), (std::vector<bool>{false, false, false}));
  rails.Look(Rates({64, 15, 16}));
  EXPECT_EQ(Slow(rails, 3), (std::vector<bool>{false, true, false}));
}

TEST(SlowRails, StaySlowAndTheRestIsComparedWithoutThem) {
  SlowRails rails(3);
  for (int look = 0; look < 3; ++look) rails.Look(Rates({1, 10, 9}));
  for (int look = 0; look < 9; ++look) rails.Look(Rates({900, 10, 9}));
  EXPECT_EQ(Slow(rails, 3), (std::vector<bool>{true, false, false}));
}

TEST(SlowRails, AreNotThoseWithLittleToSend) {
  SlowRails rails(2);
  std::vector<RailRate> rates = Rates({64, 1});
  rates[1].full = false;
  for (int look = 0; look < 9; ++look) rails.Look(rates);
  EXPECT_EQ(Slow(rails, 2), (std::vector<bool>{false, false}));
}

TEST(SlowRails, AreJudgedOnceAllHaveCarriedEnough) {
  SlowRails rails(2);
  std::vector<RailRate> rates = Rates({64, 1});
  rates[0].bytes = 1 << 10;
  for (int look = 0; look < 9; ++look) rails.Look(rates);
  EXPECT_EQ(Slow(rails, 2), (std::vector<bool>{false, false}));
}

// What the kernel measures depends on the load of the machine; here it need
// only never take the last rail away.
TEST(SlowRails, LeaveTheBestOne) {
  Pair pair({"127.0.0.1:0", "127.0.0.2:0"});
  pair.Pace(1, 32 << 20);
  pair.Pace(2, 2 << 20);
  for (int round = 0; round < 8; ++round) {
    const std::vector<int> carried = pair.Exchange(64);
    EXPECT_EQ(carried[0], 0);
    EXPECT_EQ(carried[1] + carried[2], 64);
    EXPECT_GT(carried[1], carried[2]);
  }
}

}  // namespace
}  // namespace gradientflow
