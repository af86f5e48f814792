#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"
#include "transports/endpoint.h"
#include "transports/tcp/create.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Links = Result<std::vector<std::unique_ptr<Link>>>;

constexpr std::uint64_t kKey = 0x1122334455667788;

struct Rank {
  TransportOptions options;
  std::unique_ptr<Endpoint> listener;
  testing::LinkOwner events;
  std::optional<Links> links;
};

struct Job {
  explicit Job(int size, int lanes = 2, int family = 4) {
    for (int r = 0; r < size; ++r) {
      auto rank = std::make_unique<Rank>();
      rank->options.connections = lanes - 1;
      rank->options.socket_ifname = "lo";
      rank->options.ip_version = family;
      ranks.push_back(std::move(rank));
    }
  }
  bool Listen() {
    for (auto& rank : ranks) {
      auto listener = kTcpTransport.open(rank->options);
      if (!listener.ok()) return false;
      rank->listener = std::move(listener).value();
      addresses.push_back(rank->listener->address());
    }
    return true;
  }
  void Connect(int r, milliseconds patience) {
    Rank& rank = *ranks[static_cast<std::size_t>(r)];
    const SteadyClock clock;
    ConnectArgs args;
    args.rank = r;
    args.size = static_cast<int>(ranks.size());
    args.addresses = addresses;
    args.session_key = kKey;
    args.deadline = clock.Now() + patience;
    args.clock = &clock;
    args.poller = rank.events.poller();
    args.events = &rank.events;
    rank.links = rank.listener->Connect(args);
  }
  void ConnectAll(const std::vector<int>& who, milliseconds patience) {
    std::vector<std::thread> threads;
    threads.reserve(who.size());
    for (const int r : who) {
      threads.emplace_back([this, r, patience] { Connect(r, patience); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<int> All() const {
    std::vector<int> all;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      all.push_back(static_cast<int>(r));
    }
    return all;
  }
  Link* link(int from, int to) {
    return ranks[static_cast<std::size_t>(from)]
        ->links->value()[static_cast<std::size_t>(to)]
        .get();
  }
  // Every rank sends its number to every other rank on each lane.
  void ExpectAllTalk() {
    const int size = static_cast<int>(ranks.size());
    static constexpr std::byte kNothing{};
    std::size_t expected = 0;
    for (int from = 0; from < size; ++from) {
      expected = 0;
      for (int to = 0; to < size; ++to) {
        Link* const out = link(from, to);
        ASSERT_EQ(out == nullptr, from == to);
        for (int lane = 0; from != to && lane < out->lanes(); ++lane) {
          OutMessage message;
          message.header.tag =
              static_cast<Tag>(from) * 100 + static_cast<Tag>(lane);
          message.payload.data = &kNothing;
          out->Send(lane, message);
          ++expected;
        }
      }
    }
    for (int turns = 0; turns < 1000; ++turns) {
      for (int r = 0; r < size; ++r) {
        for (int peer = 0; peer < size; ++peer) {
          if (peer != r) link(r, peer)->Poll();
        }
        ranks[static_cast<std::size_t>(r)]->events.poller()->Poll(
            milliseconds(0));
      }
    }
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank->events.received.size(), expected);
      for (const testing::Received& message : rank->events.received) {
        EXPECT_EQ(message.header.tag % 100, static_cast<Tag>(message.lane));
      }
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::string> addresses;
};

class TcpConnect : public ::testing::TestWithParam<int> {};

TEST_P(TcpConnect, JoinsEveryPairOnEveryLane) {
  for (const int size : {1, 2, 3, 5}) {
    for (const int lanes : {1, 3}) {
      Job job(size, lanes, GetParam());
      if (!job.Listen()) {
        GTEST_SKIP() << "SKIPPED, NOT TESTED: no IPv" << GetParam()
                     << " on the loopback interface";
      }
      job.ConnectAll(job.All(), seconds(20));
      for (const auto& rank : job.ranks) {
        ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
      }
      job.ExpectAllTalk();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TcpConnect, ::testing::Values(4, 6, 0));

TEST(TcpSetUp, PeersWithoutAnAddressGetNoLink) {
  Job job(3);
  ASSERT_TRUE(job.Listen());
  job.addresses[1].clear();
  job.ConnectAll({0, 2}, seconds(20));
  ASSERT_TRUE(job.ranks[0]->links->ok());
  EXPECT_EQ(job.link(0, 0), nullptr);
  EXPECT_EQ(job.link(0, 1), nullptr);
  EXPECT_NE(job.link(0, 2), nullptr);
  EXPECT_NE(job.link(2, 0), nullptr);
}

TEST(TcpSetUp, MissingRanksAreNamedWithTheirAddresses) {
  Job job(4);
  ASSERT_TRUE(job.Listen());
  job.ranks[3]->listener.reset();  // Refuses; 1 is silent.
  job.ConnectAll({0, 2}, milliseconds(400));
  const Status zero = job.ranks[0]->links->status();
  EXPECT_EQ(zero.code(), StatusCode::kDeadlineExceeded);
  for (const int r : {1, 3}) {
    const std::string named = "rank " + std::to_string(r) + " (" +
                              job.addresses[static_cast<std::size_t>(r)] + ")";
    EXPECT_NE(zero.message().find(named), std::string::npos) << zero.message();
  }
  EXPECT_EQ(zero.message().find("rank 2 ("), std::string::npos)
      << zero.message();
  EXPECT_NE(job.ranks[2]->links->status().message().find("rank 1 ("),
            std::string::npos);
}

TEST(TcpSetUp, TriesEveryAddressAPeerHas) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  // One address refuses, and one belongs to a stranger that never answers.
  const Socket stranger =
      ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value();
  job.addresses[0] = "127.0.0.1:1," + LocalAddress(stranger).ToString() + "," +
                     job.addresses[0];
  job.ConnectAll(job.All(), seconds(20));
  for (const auto& rank : job.ranks) {
    ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
  job.ExpectAllTalk();
}

TEST(TcpSetUp, StrangersAreDroppedAndDelayNobody) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  const SocketAddress zero = *SocketAddress::Parse(job.addresses[0]);
  std::vector<Socket> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(StartConnect(zero, 0).value());
    ASSERT_TRUE(tcp_test::WaitFor(strangers.back(), POLLOUT));
    // Silent ones, scanners, and ones that send half a hello.
    const std::string text = i % 3 == 0   ? ""
                             : i % 3 == 1 ? "GET / HTTP/1.1\r\nHost: gradient"
                                            "flow\r\nAccept: */*\r\n\r\n"
                                          : "GFhello\n";
    if (!text.empty()) Send(strangers.back(), text.data(), text.size());
  }
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  job.ConnectAll(job.All(), seconds(20));
  EXPECT_LT(Seconds(clock.Now() - begin), 5);
  for (const auto& rank : job.ranks) {
    ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
  job.ExpectAllTalk();
  for (const Socket& stranger : strangers) {
    ASSERT_TRUE(tcp_test::WaitFor(stranger, POLLIN));
    char byte;
    EXPECT_LE(Receive(stranger, &byte, 1), 0) << "still connected";
  }
}

TEST(TcpSetUp, AnotherSessionsRankStaysOut) {
  Job job(2);
  Job other(2);
  ASSERT_TRUE(job.Listen() && other.Listen());
  // Rank 1 of another session has this rank's address, and another key.
  other.addresses[0] = job.addresses[0];
  const SteadyClock clock;
  ConnectArgs args;
  args.rank = 1;
  args.size = 2;
  args.addresses = other.addresses;
  args.session_key = kKey + 1;
  args.deadline = clock.Now() + milliseconds(300);
  args.clock = &clock;
  args.poller = other.ranks[1]->events.poller();
  args.events = &other.ranks[1]->events;
  std::optional<Links> intruder;
  std::thread thread(
      [&] { intruder = other.ranks[1]->listener->Connect(args); });
  std::thread zero([&] { job.Connect(0, seconds(20)); });
  thread.join();
  EXPECT_EQ(intruder->status().code(), StatusCode::kDeadlineExceeded);
  job.Connect(1, seconds(20));
  zero.join();
  ASSERT_TRUE(job.ranks[0]->links->ok());
  ASSERT_TRUE(job.ranks[1]->links->ok());
  job.ExpectAllTalk();
}

TEST(TcpSetUp, UnequalNumbersOfLanesAreAnErrorOnBothSides) {
  Job job(2);
  job.ranks[1]->options.connections = 2;
  ASSERT_TRUE(job.Listen());
  job.ConnectAll(job.All(), seconds(20));
  for (const auto& rank : job.ranks) {
    const Status status = rank->links->status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* seen : {"rank 0", "rank 1", "has 2", "has 3"}) {
      EXPECT_NE(status.message().find(seen), std::string::npos)
          << status.message();
    }
  }
}

TEST(TcpSetUp, BadArgumentsAreReported) {
  TransportOptions options;
  options.connections = 64;
  EXPECT_EQ(kTcpTransport.open(options).status().code(),
            StatusCode::kInvalidArgument);
  options.connections = 0;
  options.socket_ifname = "nosuchinterface";
  const auto none = kTcpTransport.open(options);
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("nosuchinterface"), std::string::npos);
  Job job(2);
  ASSERT_TRUE(job.Listen());
  job.addresses[0] = "not an address";
  job.Connect(1, seconds(1));
  EXPECT_EQ(job.ranks[1]->links->status().code(), StatusCode::kInvalidArgument);
}

// ---- Which addresses are published.

std::vector<InterfaceAddress> SomeInterfaces() {
  const auto at = [](const char* name, const char* address) {
    return InterfaceAddress{name, *SocketAddress::Parse(address)};
  };
  return {at("lo", "127.0.0.1:0"),       at("lo", "[::1]:0"),
          at("docker0", "172.17.0.1:0"), at("eth0", "[fe80::1]:0"),
          at("eth0", "[2001:db8::5]:0"), at("eth0", "10.0.0.5:0"),
          at("eth01", "10.0.1.5:0")};
}

std::string Chosen(const char* names, int family) {
  const auto chosen = ChooseAddresses(SomeInterfaces(), names, family);
  return chosen.ok() ? JoinAddresses(chosen.value()) : "none";
}

TEST(ChooseAddresses, PutsTheLikeliestFirstAndLeavesOutLoopback) {
  EXPECT_EQ(Chosen("", 0),
            "10.0.0.5:0,10.0.1.5:0,[2001:db8::5]:0,172.17.0.1:0");
  EXPECT_EQ(Chosen("", 6), "[2001:db8::5]:0");
}

TEST(ChooseAddresses, FollowsTheNamesGiven) {
  EXPECT_EQ(Chosen("eth0", 4), "10.0.0.5:0,10.0.1.5:0");
  EXPECT_EQ(Chosen("=eth0", 4), "10.0.0.5:0");
  EXPECT_EQ(Chosen("^eth", 4), "172.17.0.1:0");
  EXPECT_EQ(Chosen("^=eth0,docker0", 0), "10.0.1.5:0");
  EXPECT_EQ(Chosen("lo", 0), "127.0.0.1:0,[::1]:0");
  EXPECT_EQ(Chosen("eth0,lo", 4), "10.0.0.5:0,10.0.1.5:0,127.0.0.1:0");
  EXPECT_EQ(Chosen("ib", 0), "none");
}

TEST(ChooseAddresses, TakesLoopbackWhenThereIsNothingElse) {
  EXPECT_EQ(Chosen("^eth,docker", 0), "127.0.0.1:0,[::1]:0");
  EXPECT_EQ(Chosen("^eth,docker,lo", 0), "none");
}

TEST(SocketAddress, TextsAndAddressesMatch) {
  for (const char* text : {"10.0.0.2:4321", "[fd00::2]:1", "[::]:65535"}) {
    const auto address = SocketAddress::Parse(text);
    ASSERT_TRUE(address.has_value()) << text;
    EXPECT_EQ(address->ToString(), text);
  }
  for (const char* text : {"", "10.0.0.2", "10.0.0.2:", "10.0.0.2:65536",
                           "host:1", "::1:5", "[::1]5", "10.0.0.2:-1"}) {
    EXPECT_FALSE(SocketAddress::Parse(text).has_value()) << text;
  }
}

TEST(EqualSecrets, ComparesAll) {
  EXPECT_TRUE(EqualSecrets("", ""));
  EXPECT_TRUE(EqualSecrets("abc", "abc"));
  EXPECT_FALSE(EqualSecrets("abc", "abd"));
  EXPECT_FALSE(EqualSecrets("abc", "bbc"));
  EXPECT_FALSE(EqualSecrets("abc", "ab"));
}

}  // namespace
}  // namespace gradientflow
