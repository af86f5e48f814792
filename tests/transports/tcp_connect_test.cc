#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "tests/transports/link_owner.h"
#include "tests/transports/refusing_firewall.h"
#include "tests/transports/silent_port.h"
#include "tests/transports/tcp_job.h"
#include "tests/transports/tcp_pair.h"
#include "transports/endpoint.h"
#include "transports/tcp/create.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/settings.h"
#include "transports/tcp/socket.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tcp_test::Job;
using tcp_test::Links;

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

// How many connections this process has with this congestion control.
int ConnectionsWith(std::string_view congestion) {
  constexpr int kMostDescriptors = 1000;
  int found = 0;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    char name[16] = {};
    socklen_t bytes = sizeof(name);
    sockaddr_storage peer = {};
    socklen_t peer_bytes = sizeof(peer);
    found += ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0 &&
             ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer),
                           &peer_bytes) == 0 &&
             congestion == name;
  }
  return found;
}

// Every kernel has Reno, and lets everybody use it.
TEST(TcpSetUp, LanesHaveTheCongestionControlThatIsSet) {
  Job job(3, 2);
  for (auto& rank : job.ranks) rank->options.own["tcp_congestion"] = "reno";
  ASSERT_TRUE(job.Listen());
  const int before = ConnectionsWith("reno");
  job.ConnectAll(job.All(), seconds(20));
  for (const auto& rank : job.ranks) ASSERT_TRUE(rank->links->ok());
  EXPECT_EQ(ConnectionsWith("reno") - before,
            3 * 2 * 2);  // Pairs, lanes, ends.
}

TEST(TcpSetUp, UnknownCongestionControlIsAnErrorThatNamesTheKnownOnes) {
  for (const char* name : {"no_such", "a_name_far_too_long"}) {
    TransportOptions options;
    options.own["tcp_congestion"] = name;
    const auto opened = kTcpTransport.open(options);
    ASSERT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    const std::string& said = opened.status().message();
    EXPECT_NE(said.find(name), std::string::npos) << said;
    EXPECT_NE(said.find("tcp_congestion: expected "), std::string::npos)
        << said;
    if (options.CheckOwn(kTcpCongestion).ok()) {
      EXPECT_NE(said.find("reno"), std::string::npos) << said;
    }
  }
}

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

// Nobody gets through to `closed`, so it has to connect to the others.
void ExpectAllLinksWithClosed(int closed, int size, const std::string& door) {
  Job job(size);
  ASSERT_TRUE(job.Listen());
  job.addresses[static_cast<std::size_t>(closed)] = door;
  job.ConnectAll(job.All(), seconds(60));
  for (const auto& rank : job.ranks) {
    ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
  job.ExpectAllTalk();
}

TEST(TcpSetUp, OneDirectionIsEnough) {
  const tcp_test::SilentPort silent;
  const std::string refuses = "127.0.0.2:1";
  for (const std::string& door : {silent.address(), refuses}) {
    for (const int size : {2, 3, 5}) {
      for (int closed = 0; closed < size; ++closed) {
        SCOPED_TRACE(StrCat("rank ", closed, " of ", size, " is at ", door));
        ExpectAllLinksWithClosed(closed, size, door);
      }
    }
  }
}

TEST(TcpSetUp, WithoutAnyDirectionTheErrorSaysWhatWasTried) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  const std::string own[2] = {job.addresses[0], job.addresses[1]};
  const tcp_test::SilentPort silent[2];
  for (std::size_t r = 0; r < 2; ++r) job.addresses[r] = silent[r].address();
  job.ConnectAll(job.All(), seconds(2));
  for (std::size_t r = 0; r < 2; ++r) {
    const Status status = job.ranks[r]->links->status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    const std::string peer = job.addresses[1 - r];
    EXPECT_EQ(
        status.message(),
        StrCat("rank ", r, " (", own[r],
               ") has no TCP connection in time with rank ", 1 - r, " (", peer,
               "): ", peer, ": no answer; none came in from there either"));
  }
}

// The address of rank 0 is none of this host's, as rank 1 sees it.
TEST(TcpSetUp, WhoIsRefusedAndNotReachedSaysBoth) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  job.addresses[0] = "127.0.0.2:1";
  const SteadyClock clock;
  const Clock::Time begin = clock.Now();
  // Rank 0 does not connect.
  job.ConnectAll({1}, seconds(60));
  EXPECT_LT(Seconds(clock.Now() - begin), 2) << "about 0.8 s";
  const Status status = job.ranks[1]->links->status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            StrCat("rank 0 (127.0.0.2:1) ended while ranks connected, or "
                   "cannot be reached by rank 1 (",
                   job.addresses[1],
                   "), which it has not reached either: 127.0.0.2:1: connect: "
                   "Connection refused"));
}

// A firewall that says so, and a peer behind it that is late.
TEST(TcpSetUp, AMessageOfTheNetworkIsNoSignOfDeath) {
  const auto firewall = tcp_test::RefusingFirewall::Build();
  if (firewall == nullptr) {
    GTEST_SKIP() << "SKIPPED, NOT TESTED: raw sockets need root";
  }
  Job job(2);
  ASSERT_TRUE(job.Listen());
  job.addresses[0] = firewall->address();
  std::thread one([&] { job.Connect(1, seconds(60)); });
  // As a rank that has refused for this long would have been given up.
  const bool refused = firewall->AwaitRefusals(milliseconds(1000));
  job.Connect(0, seconds(60));
  one.join();
  EXPECT_TRUE(refused);
  for (const auto& rank : job.ranks) {
    EXPECT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
}

// Whoever dials it, or waits for it, learns it long before the deadline.
TEST(TcpSetUp, ARankThatHasEndedIsNamedAtOnce) {
  for (const int dead : {0, 2}) {
    Job job(3);
    ASSERT_TRUE(job.Listen());
    job.ranks[static_cast<std::size_t>(dead)]->listener.reset();
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    std::vector<int> others = job.All();
    others.erase(others.begin() + dead);
    job.ConnectAll(others, seconds(60));
    EXPECT_LT(Seconds(clock.Now() - begin), 5) << "about 1 s";
    for (const int r : others) {
      const Status seen =
          job.ranks[static_cast<std::size_t>(r)]->links->status();
      EXPECT_EQ(seen.code(), StatusCode::kUnavailable);
      // The one that fails first may be named as well.
      EXPECT_NE(seen.message().find("while ranks connected"), std::string::npos)
          << seen.message();
    }
  }
}

// Rank 0 has ended because it has heard who has, a second before a watch tells.
TEST(TcpSetUp, AWatchKnowsBetterThanRefusals) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  job.ranks[0]->listener.reset();
  const Status why(StatusCode::kUnavailable, "rank 7 has ended");
  const SteadyClock clock;
  const Clock::Time told = clock.Now() + milliseconds(1000);
  job.Connect(1, seconds(60),
              [&] { return clock.Now() < told ? Status() : why; });
  EXPECT_EQ(job.ranks[1]->links->status().message(), why.message());
}

// Rank 1, which is connected, closes without a word; rank 2 does not connect.
TEST(TcpSetUp, AWatchKnowsBetterThanAClosedConnection) {
  Job job(3);
  ASSERT_TRUE(job.Listen());
  const Status why(StatusCode::kUnavailable, "rank 7 has ended");
  const SteadyClock clock;
  const Clock::Time told = clock.Now() + milliseconds(1000);
  std::thread zero([&] {
    job.Connect(0, seconds(60),
                [&] { return clock.Now() < told ? Status() : why; });
  });
  job.Connect(1, milliseconds(400));
  EXPECT_NE(job.ranks[1]->links_of_failure[0], nullptr);
  job.ranks[1]->links_of_failure.clear();
  zero.join();
  EXPECT_EQ(job.ranks[0]->links->status().message(), why.message());
}

TEST(TcpSetUp, ARankThatFailsTellsThoseThatItIsConnectedTo) {
  Job job(3);
  ASSERT_TRUE(job.Listen());  // Rank 2 listens, and does not connect.
  std::thread zero([&] { job.Connect(0, seconds(60)); });
  job.Connect(1, milliseconds(500));
  testing::LinkOwner& events = job.ranks[1]->events;
  Link* const link = job.ranks[1]->links_of_failure[0].get();
  ASSERT_NE(link, nullptr);
  const std::string why = "what happened to rank 1";
  OutMessage abort;
  abort.header.kind = MessageKind::kAbort;
  abort.header.tag = static_cast<Tag>(StatusCode::kResourceExhausted);
  abort.header.payload_bytes = why.size();
  abort.payload = {
      reinterpret_cast<const std::byte*>(why.data()), why.size(), {}};
  link->Send(0, abort);
  for (int turns = 0; turns < 100; ++turns) {
    link->Poll();
    events.poller()->Poll(milliseconds(1));
  }
  link->Close();
  zero.join();
  EXPECT_EQ(job.ranks[0]->links->status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(job.ranks[0]->links->status().message(), why);
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
  const SocketAddress zero = SplitRated(job.addresses[0]).value()[0].address;
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
  args.secret = HmacSha256("another key", "");
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

}  // namespace
}  // namespace gradientflow
