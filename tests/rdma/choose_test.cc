#include "transports/rdma/choose.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

// Which device and which addresses ranks choose.
namespace gradientflow {
namespace {

using ::testing::HasSubstr;
using Pair = std::pair<std::size_t, std::size_t>;

constexpr auto kV1 = IBV_GID_TYPE_ROCE_V1;
constexpr auto kV2 = IBV_GID_TYPE_ROCE_V2;

RdmaGid Gid(const std::string& address, ibv_gid_type type = kV2,
            int index = 0) {
  RdmaGid gid;
  gid.index = index;
  gid.type = type;
  const bool v4 = address.find(':') == std::string::npos;
  const std::string text = v4 ? "::ffff:" + address : address;
  EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), gid.bytes.data()), 1);
  return gid;
}

RdmaDevice Device(const std::string& name, std::vector<RdmaGid> gids,
                  double gbps = 100) {
  RdmaPort port;
  port.active = true;
  port.state = "active";
  port.ethernet = true;
  port.mtu = 4096;
  port.gbps = gbps;
  port.gids = std::move(gids);
  for (std::size_t i = 0; i < port.gids.size(); ++i) {
    port.gids[i].index = static_cast<int>(i);
  }
  RdmaDevice device;
  device.name = name;
  device.ports = {port};
  return device;
}

// The port that a rank with one of them uses.
Result<RdmaChoice> ChooseOne(const std::vector<RdmaDevice>& devices,
                             RdmaWishes wishes) {
  wishes.ports = 1;
  auto choices = ChooseRails(devices, wishes);
  if (!choices.ok()) return choices.status();
  return choices.value().front();
}

std::string Chosen(const std::vector<RdmaDevice>& devices,
                   const RdmaWishes& wishes) {
  const auto choice = ChooseOne(devices, wishes);
  return choice.ok() ? choice.value().device + ":" +
                           std::to_string(choice.value().port.number)
                     : choice.status().ToString();
}

// ---- The port

TEST(ChooseRails, TakesThePortOnTheWayToThePeers) {
  const std::vector<RdmaDevice> devices = {Device("a", {Gid("10.0.0.1")}, 400),
                                           Device("b", {Gid("10.1.0.1")}, 25),
                                           Device("c", {Gid("10.2.0.1")}, 400)};
  EXPECT_EQ(Chosen(devices, {"", {"10.1.0.1", "10.2.0.1"}, 0}), "b:1");
  EXPECT_EQ(Chosen(devices, {"", {"10.9.0.1", "10.2.0.1"}, 0}), "c:1");
  const auto choice = ChooseOne(devices, {"", {"10.1.0.1"}, 0});
  EXPECT_THAT(choice.value().why, HasSubstr("one by which peers reach"));
}

TEST(ChooseRails, ElseTakesTheFastest) {
  const std::vector<RdmaDevice> devices = {
      Device("slow", {Gid("10.0.0.1")}, 25),
      Device("fast", {Gid("10.1.0.1")}, 400)};
  EXPECT_EQ(Chosen(devices, {"", {"192.168.0.1"}, 0}), "fast:1");
  EXPECT_THAT(ChooseOne(devices, {}).value().why,
              HasSubstr("no port has an address"));
}

TEST(ChooseRails, RanksOfAHostTakeTurnsAmongEqualPortsOnly) {
  std::vector<RdmaDevice> devices = {Device("a", {Gid("10.0.0.1")}),
                                     Device("b", {Gid("10.1.0.1")}),
                                     Device("slow", {Gid("10.2.0.1")}, 10)};
  std::vector<std::string> chosen;
  for (int turn = 0; turn < 5; ++turn) {
    chosen.push_back(Chosen(devices, {"", {}, turn}));
  }
  EXPECT_THAT(chosen,
              ::testing::ElementsAre("a:1", "b:1", "a:1", "b:1", "a:1"));
  EXPECT_THAT(ChooseOne(devices, {}).value().why, HasSubstr("one of 2 alike"));
}

std::string AllChosen(const std::vector<RdmaDevice>& devices,
                      const RdmaWishes& wishes) {
  const auto choices = ChooseRails(devices, wishes);
  if (!choices.ok()) return choices.status().ToString();
  std::string names;
  for (const RdmaChoice& choice : choices.value()) names += choice.device;
  return names;
}

TEST(ChooseRails, TakesPortsThatAreAlikeInTheOrderOfTheirNetworks) {
  const std::vector<RdmaDevice> devices = {
      Device("c", {Gid("10.2.0.1")}), Device("a", {Gid("10.3.0.1")}),
      Device("d", {Gid("10.0.0.1")}), Device("b", {Gid("10.1.0.1")}),
      Device("slow", {Gid("10.4.0.1")}, 10)};
  EXPECT_EQ(AllChosen(devices, {"", {}, 0, 2}), "ca");
  EXPECT_EQ(AllChosen(devices, {"", {}, 1, 2}), "db") << "the next rank's";
  EXPECT_EQ(AllChosen(devices, {"", {}, 2, 2}), "ca");
  EXPECT_EQ(AllChosen(devices, {"", {}, 1, 3}), "bca") << "around the end";
  EXPECT_EQ(AllChosen(devices, {"", {}, 0, 9}), "dbca") << "no slow one";
  EXPECT_EQ(AllChosen(devices, {"=a:1,slow", {}, 0, 2}), "a");
}

TEST(ChooseRails, ListsNamePortsAndDevices) {
  RdmaDevice two = Device("mlx5_0", {Gid("10.0.0.1")});
  two.ports.push_back(two.ports[0]);
  two.ports[1].number = 2;
  const std::vector<RdmaDevice> devices = {
      two, Device("mlx5_10", {Gid("10.1.0.1")}, 50),
      Device("rxe0", {Gid("10.2.0.1")}, 10)};
  EXPECT_EQ(Chosen(devices, {"mlx5_0:2", {}, 0}), "mlx5_0:2");
  EXPECT_EQ(Chosen(devices, {"=mlx5_0", {}, 1}), "mlx5_0:2");
  EXPECT_EQ(Chosen(devices, {"=mlx5_1,rxe0", {}, 0}), "rxe0:1");
  EXPECT_EQ(Chosen(devices, {"mlx5_1", {}, 0}), "mlx5_10:1");
  EXPECT_EQ(Chosen(devices, {"^mlx5", {}, 0}), "rxe0:1");
  EXPECT_EQ(Chosen(devices, {"^=mlx5_0,rxe0:1", {}, 0}), "mlx5_10:1");
  EXPECT_EQ(Chosen(devices, {"^=mlx5_0:1", {}, 0}), "mlx5_0:2");
}

TEST(ChooseRails, WithoutAPortItSaysWhatItHasSeen) {
  RdmaDevice down = Device("down", {Gid("10.0.0.1")});
  down.ports[0].active = false;
  down.ports[0].state = "armed";
  RdmaDevice closed;
  closed.name = "closed";
  closed.problem = "cannot be opened: Permission denied";
  const RdmaDevice local = Device("local", {Gid("fe80::1")});
  const RdmaDevice bare = Device("bare", {});
  RdmaDevice narrow = Device("narrow", {Gid("10.0.0.2")});
  narrow.ports[0].max_message_bytes = 65536;
  const auto none =
      ChooseOne({down, closed, local, bare, narrow}, {"^x", {}, 0});
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  for (const char* part :
       {"no RDMA port can be used (wanted: \"^x\")", "down:1 is armed",
        "closed cannot be opened: Permission denied",
        "local:1 has no address that other hosts reach",
        "bare:1 has no address",
        "narrow:1 writes at most 65536 bytes at once, expected 2097152"}) {
    EXPECT_THAT(none.status().message(), HasSubstr(part));
  }
  EXPECT_THAT(ChooseOne({}, {}).status().message(),
              HasSubstr("there is no device"));
}

TEST(ChooseRails, OnlyAListThatNamesNothingIsWrong) {
  const RdmaDevice good = Device("good", {Gid("10.0.0.1")});
  const auto typo = ChooseOne({good}, {"god", {}, 0});
  EXPECT_EQ(typo.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(typo.status().message(),
              HasSubstr("good:1 is not among the devices wanted"));
  // A device that may not be opened has no ports to name.
  RdmaDevice closed;
  closed.name = "closed";
  closed.problem = "cannot be opened";
  for (const char* wish : {"", "closed", "=closed", "^good"}) {
    EXPECT_EQ(ChooseOne({closed}, {wish, {}, 0}).status().code(),
              StatusCode::kUnavailable)
        << wish;
  }
  EXPECT_EQ(ChooseOne({closed}, {"^closed", {}, 0}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ChooseRails, OffersRoutableAddressesBestFirst) {
  const RdmaDevice device = Device(
      "a", {Gid("fe80::1", kV1), Gid("fe80::1", kV2), Gid("10.0.0.1", kV1),
            Gid("2001::1", kV2), Gid("10.0.0.1", kV2)});
  const auto choice = ChooseOne({device}, {});
  std::vector<int> indexes;
  for (const RdmaGid& gid : choice.value().port.gids) {
    indexes.push_back(gid.index);
  }
  EXPECT_THAT(indexes, ::testing::ElementsAre(4, 3, 2));
}

TEST(ChooseRails, OffersAtMostSoMany) {
  std::vector<RdmaGid> gids;
  for (int i = 0; i < 40; ++i)
    gids.push_back(Gid("2001::" + std::to_string(i)));
  gids.push_back(Gid("10.0.0.1"));
  const auto choice = ChooseOne({Device("a", gids)}, {});
  ASSERT_EQ(choice.value().port.gids.size(), kMostGids);
  EXPECT_EQ(choice.value().port.gids[0].index, 40);
}

TEST(ChooseRails, InfiniBandHasLinkLocalAddresses) {
  RdmaDevice device = Device("ib", {Gid("fe80::17", IBV_GID_TYPE_IB)});
  device.ports[0].ethernet = false;
  EXPECT_EQ(Chosen({device}, {}), "ib:1");
}

// ---- The addresses of a pair

TEST(MatchGids, PrefersRoceV2ThenIpv4ThenTheSameNetwork) {
  const RdmaGid v1 = Gid("10.0.0.1", kV1);
  const RdmaGid v6 = Gid("2001::1");
  const RdmaGid far = Gid("172.16.0.1");
  const RdmaGid near = Gid("10.0.0.1");
  EXPECT_EQ(MatchGids({v1, v6, far, near},
                      {Gid("10.0.0.2", kV1), Gid("2001::2"), Gid("10.0.0.2")}),
            Pair(3, 2));
  EXPECT_EQ(MatchGids({v1, v6}, {Gid("10.0.0.2", kV1), Gid("2001::2")}),
            Pair(1, 1));
  EXPECT_EQ(MatchGids({v1}, {Gid("2001::2"), Gid("10.0.0.2", kV1)}),
            Pair(0, 1));
  // Through a router, another network is reached, too.
  EXPECT_EQ(MatchGids({far}, {near}), Pair(0, 0));
}

TEST(MatchGids, NothingFitsAcrossTypesAndFamilies) {
  EXPECT_FALSE(MatchGids({Gid("10.0.0.1", kV1)}, {Gid("10.0.0.2", kV2)}));
  EXPECT_FALSE(MatchGids({Gid("2001::1")}, {Gid("10.0.0.2")}));
  EXPECT_FALSE(MatchGids({}, {Gid("10.0.0.2")}));
  EXPECT_FALSE(MatchGids({Gid("10.0.0.2")}, {}));
}

std::vector<RdmaGid> RandomGids(std::mt19937* random) {
  std::vector<RdmaGid> gids((*random)() % (kMostGids + 1));
  for (RdmaGid& gid : gids) {
    gid.type = static_cast<ibv_gid_type>((*random)() % 3);
    if ((*random)() % 2 == 0) {
      gid.bytes = Gid("10.0.0.0").bytes;
      gid.bytes[13] = static_cast<std::uint8_t>((*random)() % 3);
    } else {
      gid.bytes[0] = 0x20;
    }
    gid.bytes[15] = static_cast<std::uint8_t>((*random)() % 5);
  }
  return gids;
}

int Common(const RdmaGid& a, const RdmaGid& b) {
  for (int bit = 0; bit < 128; ++bit) {
    const auto at = static_cast<std::size_t>(bit / 8);
    if (((a.bytes[at] ^ b.bytes[at]) >> (7 - bit % 8) & 1) != 0) return bit;
  }
  return 128;
}

// Against a look at all pairs, which says how good the best one is.
TEST(MatchGids, TakesOneOfTheBestOfRandomLists) {
  std::mt19937 random(7);
  int matched = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto lower = RandomGids(&random);
    const auto higher = RandomGids(&random);
    const auto worth = [&](std::size_t a, std::size_t b) {
      const RdmaGid& x = lower[a];
      const RdmaGid& y = higher[b];
      if (x.type != y.type || x.is_ipv4() != y.is_ipv4()) return -1;
      return (x.type != kV1 ? 1000 : 0) + (x.is_ipv4() ? 500 : 0) +
             Common(x, y);
    };
    int best = -1;
    for (std::size_t a = 0; a < lower.size(); ++a) {
      for (std::size_t b = 0; b < higher.size(); ++b) {
        best = std::max(best, worth(a, b));
      }
    }
    const auto match = MatchGids(lower, higher);
    ASSERT_EQ(match.has_value(), best >= 0);
    if (match) {
      EXPECT_EQ(worth(match->first, match->second), best);
      ++matched;
    }
  }
  EXPECT_GT(matched, 1000);
}

}  // namespace
}  // namespace gradientflow
