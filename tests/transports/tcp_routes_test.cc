#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/transports/tcp_job.h"
#include "transports/endpoint.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/create.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/routes.h"

// Which addresses a rank publishes, and by which its peers come.
namespace gradientflow {
namespace {

InterfaceAddress At(const char* name, const char* address,
                    Reach reach = Reach::kNetwork, int mbps = 0,
                    bool carrier = true) {
  return {name, *SocketAddress::Parse(address), reach, carrier, mbps};
}

std::vector<InterfaceAddress> SomeInterfaces() {
  return {At("lo", "127.0.0.1:0", Reach::kLoopback),
          At("lo", "[::1]:0", Reach::kLoopback),
          At("docker0", "172.17.0.1:0", Reach::kVirtual),
          At("eth0", "[fe80::1]:0"),
          At("eth0", "[2001:db8::5]:0"),
          At("eth0", "10.0.0.5:0"),
          At("eth01", "10.0.1.5:0")};
}

std::string Chosen(const std::vector<InterfaceAddress>& all, const char* names,
                   int family) {
  const auto chosen = ChooseAddresses(all, names, family);
  if (!chosen.ok()) return "none";
  std::string text;
  for (const RatedAddress& rated : chosen.value()) {
    const std::string address = rated.address.ToString();
    text += (text.empty() ? "" : " ") + address.substr(0, address.rfind(':'));
  }
  return text;
}

std::string Chosen(const char* names, int family) {
  return Chosen(SomeInterfaces(), names, family);
}

TEST(ChooseAddresses, PutsTheLikeliestFirstAndLeavesOutLoopback) {
  EXPECT_EQ(Chosen("", 0), "10.0.0.5 10.0.1.5 [2001:db8::5] 172.17.0.1");
  EXPECT_EQ(Chosen("", 6), "[2001:db8::5]");
}

TEST(ChooseAddresses, FollowsTheNamesGiven) {
  EXPECT_EQ(Chosen("eth0", 4), "10.0.0.5 10.0.1.5");
  EXPECT_EQ(Chosen("=eth0", 4), "10.0.0.5");
  EXPECT_EQ(Chosen("^eth", 4), "172.17.0.1");
  EXPECT_EQ(Chosen("^=eth0,docker0", 0), "10.0.1.5");
  EXPECT_EQ(Chosen("lo", 0), "127.0.0.1 [::1]");
  EXPECT_EQ(Chosen("eth0,lo", 4), "10.0.0.5 10.0.1.5 127.0.0.1");
  EXPECT_EQ(Chosen("ib", 0), "none");
}

TEST(ChooseAddresses, TakesLoopbackWhenThereIsNothingElse) {
  EXPECT_EQ(Chosen("^eth,docker", 0), "127.0.0.1 [::1]");
  EXPECT_EQ(Chosen("^eth,docker,lo", 0), "none");
}

TEST(ChooseAddresses, PutsFastInterfacesFirstAndLastResortsLast) {
  const std::vector<InterfaceAddress> all = {
      At("eth9", "10.9.0.1:0", Reach::kNetwork, 100000, false),
      At("eth8", "169.254.7.7:0"),
      At("wg0", "10.8.0.1:0", Reach::kVirtual, 10000),
      At("ens3", "10.3.0.1:0"),
      At("eth0", "10.0.0.1:0", Reach::kNetwork, 100),
      At("eth1", "10.1.0.1:0", Reach::kNetwork, 25000),
      At("eth2", "[fd00::1]:0", Reach::kNetwork, 25000)};
  EXPECT_EQ(
      Chosen(all, "", 0),
      "10.1.0.1 [fd00::1] 10.0.0.1 10.3.0.1 10.8.0.1 169.254.7.7 10.9.0.1");
}

TEST(ListInterfaces, KnowsLoopback) {
  const auto all = ListInterfaces();
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  int loopback = 0;
  for (const InterfaceAddress& entry : all.value()) {
    if (entry.reach == Reach::kLoopback) ++loopback;
    EXPECT_EQ(entry.reach == Reach::kLoopback, entry.address.IsLoopback())
        << entry.interface << " " << entry.address.ToString();
  }
  EXPECT_GT(loopback, 0);
}

std::vector<RatedAddress> Rated(const char* text) {
  auto split = SplitRated(text);
  EXPECT_TRUE(split.ok()) << split.status().ToString();
  return split.ok() ? std::move(split).value() : std::vector<RatedAddress>();
}

TEST(RatedAddresses, AreTextsThatCanBeRead) {
  for (const char* text : {"10.0.0.2:1@9", "[fd00::2]:7@25000,10.0.0.2:1@0"}) {
    EXPECT_EQ(JoinRated(Rated(text)), text);
  }
  for (const char* text :
       {"", "10.0.0.2:1@", "10.0.0.2:1@-1", "10.0.0.2:1@1x", "10.0.0.2@1", "@1",
        "10.0.0.2:1@1,", "10.0.0.2:1@99999999999"}) {
    const auto split = SplitRated(text);
    EXPECT_EQ(split.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(split.status().message().find("expected ip:port"),
              std::string::npos);
  }
}

TEST(RatedAddresses, NeedNoRate) {
  EXPECT_EQ(JoinRated(Rated("10.0.0.2:1,[::1]:2@7")), "10.0.0.2:1@9,[::1]:2@7");
}

TEST(Rails, AreAddressesThatMayCarryAShare) {
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@25000")), 1);
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@25000,10.1.0.1:1@25000")), 2);
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@25000,10.1.0.1:1@10000")), 2);
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@40000,10.1.0.1:1@10000")), 1);
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@9,10.1.0.1:1@9,10.2.0.1:1@3")), 2);
  EXPECT_EQ(RailsIn(Rated("10.0.0.1:1@100,[fd00::1]:1@100,10.1.0.1:1@100,"
                          "[fd00::2]:1@100,10.2.0.1:1@10")),
            2);
}

TEST(Rails, MakeOneLineTogether) {
  EXPECT_EQ(LineRateOf(Rated("10.0.0.1:1@25000")), 25000);
  EXPECT_EQ(LineRateOf(Rated("10.0.0.1:1@25000,10.1.0.1:1@10000")), 35000);
  EXPECT_EQ(LineRateOf(Rated("10.0.0.1:1@40000,10.1.0.1:1@10000")), 40000);
  EXPECT_EQ(LineRateOf(Rated("10.0.0.1:1@100,[fd00::1]:1@100")), 100);
  EXPECT_EQ(LineRateOf(Rated("10.0.0.1:1@9,10.1.0.1:1@9")), 0) << "unknown";
}

std::string FirstOf(const char* addresses, int lane) {
  const auto route = RouteOfLane(Rated(addresses), lane);
  EXPECT_EQ(route.size(), Rated(addresses).size());
  return route.front().ToString();
}

TEST(Rails, ShareTheLanesAndStandInForEachOther) {
  const char* two =
      "10.0.0.1:1@100,[fd00::1]:1@100,10.1.0.1:2@100,10.2.0.1:3@9";
  EXPECT_EQ(FirstOf(two, 0), "10.0.0.1:1");
  EXPECT_EQ(FirstOf(two, 1), "10.0.0.1:1");
  EXPECT_EQ(FirstOf(two, 2), "10.1.0.1:2");
  EXPECT_EQ(FirstOf(two, 3), "10.0.0.1:1");
  const auto route = RouteOfLane(Rated(two), 2);
  EXPECT_EQ(route[1].ToString(), "10.0.0.1:1");
}

TEST(RateRoutes, TakesTheSlowerEndAndPutsTheUnreachableLast) {
  const std::vector<InterfaceAddress> mine = {
      At("a", "127.0.0.1:0", Reach::kNetwork, 100)};
  std::vector<RatedAddress> peer =
      Rated("[2001:db8::1]:9@50000,127.0.0.1:7@50,127.0.0.1:8@25000");
  RateRoutes(mine, &peer);
  peer.back().mbps = 0;  // A host may have a route to 2001:db8::1.
  EXPECT_EQ(JoinRated(peer),
            "127.0.0.1:8@100,127.0.0.1:7@50,[2001:db8::1]:9@0");
}

TEST(Advertising, PublishesTheNameAndListensEverywhere) {
  tcp_test::Job job(2);
  for (auto& rank : job.ranks) rank->options.advertise_address = "127.0.0.9";
  ASSERT_TRUE(job.Listen());
  EXPECT_EQ(job.addresses[0].substr(0, 10), "127.0.0.9:");
  job.ConnectAll(job.All(), std::chrono::seconds(20));
  for (const auto& rank : job.ranks) {
    ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
  job.ExpectAllTalk();
}

TEST(PortRange, IsKeptToAndItsEndIsSaid) {
  tcp_test::Job job(1);
  ASSERT_TRUE(job.Listen());
  const auto at = job.addresses[0].find(':') + 1;
  const std::string port =
      job.addresses[0].substr(at, job.addresses[0].find('@') - at);
  TransportOptions options = job.ranks[0]->options;
  options.first_port = static_cast<std::uint16_t>(std::stoi(port));
  options.last_port = options.first_port;
  const auto taken = kTcpTransport.open(options);
  EXPECT_NE(taken.status().message().find("expected a free port from " + port +
                                          " to " + port),
            std::string::npos)
      << taken.status().ToString();
  job.ranks[0]->listener.reset();
  const auto free = kTcpTransport.open(options);
  ASSERT_TRUE(free.ok()) << free.status().ToString();
  EXPECT_EQ(free.value()->address().find("127.0.0.1:" + port + "@"), 0U);
  options.first_port = 9;
  options.last_port = 8;
  EXPECT_EQ(kTcpTransport.open(options).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradientflow
