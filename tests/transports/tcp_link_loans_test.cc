#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/socket.h"
#include "transports/wire.h"

// TCP links whose large payloads are moved by io threads. The conformance suite
// and tcp_link_test.cc run with io threads, too.
namespace gradientflow {
namespace {

using testing::Drive;
using testing::Intact;
using testing::LinkOwner;
using testing::Pattern;
using testing::Received;

// A link of rank 0 to a rank 1 that is played by the test.
struct RawPeer {
  explicit RawPeer(int lanes, int io_threads = 1) {
    std::vector<Socket> ours;
    for (int i = 0; i < lanes; ++i) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0").value();
      ours.push_back(std::move(made.one));
      sockets.push_back(std::move(made.other));
    }
    auto made = tcp_test::MakeLink(1, std::move(ours), &owner, io_threads);
    link = made.get();
    owner.TakeOne(std::move(made));
  }
  // Returns false if the link does not read for some seconds.
  bool Write(std::size_t lane, const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const std::int64_t sent = Send(sockets[lane], data, bytes);
      if (sent > 0) {
        data += sent;
        bytes -= static_cast<std::size_t>(sent);
      } else if (!tcp_test::WaitFor(sockets[lane], POLLOUT)) {
        return false;
      }
    }
    return true;
  }
  // Takes so many bytes. Returns false if they do not come.
  bool Read(std::size_t lane, std::size_t bytes) {
    std::vector<std::byte> got(bytes);
    for (std::size_t have = 0; have < bytes;) {
      if (!tcp_test::WaitFor(sockets[lane], POLLIN)) return false;
      const auto more = Receive(sockets[lane], &got[have], bytes - have);
      if (more <= 0) return false;
      have += static_cast<std::size_t>(more);
    }
    return true;
  }
  bool WriteHeader(std::size_t lane, Tag tag, std::size_t bytes) {
    Header header;
    header.tag = tag;
    header.payload_bytes = bytes;
    const auto encoded = EncodeHeader(header);
    return Write(lane, encoded.data(), encoded.size());
  }
  bool AwaitHeaders(std::size_t count) {
    return Drive({&owner}, [&] { return owner.headers == count; });
  }

  std::vector<Socket> sockets;
  LinkOwner owner;
  Link* link = nullptr;
};

// More than a connection holds.
constexpr std::size_t kLarge = std::size_t{32} << 20;
// More than an io thread moves before it is asked to come back.
constexpr std::size_t kLargerThanLent = std::size_t{3} << 20;

TEST(TcpLoans, APayloadIsReadWhileNobodyDrives) {
  RawPeer peer(1);
  const auto payload = Pattern(5, kLarge);
  ASSERT_TRUE(peer.WriteHeader(0, 5, kLarge));
  ASSERT_TRUE(peer.AwaitHeaders(1));
  EXPECT_TRUE(peer.Write(0, payload.data(), payload.size()));
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return peer.owner.messages == 1; }));
  EXPECT_TRUE(Intact(peer.owner.received[0]));
}

// A line whose driver does not tell its rate: as if there were no io threads,
// until it has been measured.
TEST(TcpLoans, BeginWhenTheLineHasBeenMeasured) {
  RawPeer peer(1, tcp_test::kWhenMeasured);
  const auto before = Pattern(4, kLargerThanLent);
  ASSERT_TRUE(peer.WriteHeader(0, 4, before.size()));
  ASSERT_TRUE(peer.AwaitHeaders(1));
  std::thread writer(
      [&] { EXPECT_TRUE(peer.Write(0, before.data(), before.size())); });
  EXPECT_TRUE(Drive({&peer.owner}, [&] { return peer.owner.messages == 1; }));
  writer.join();
  peer.link->LineMeasured(10'000);
  const auto payload = Pattern(5, kLarge);
  ASSERT_TRUE(peer.WriteHeader(0, 5, kLarge));
  ASSERT_TRUE(peer.AwaitHeaders(2));
  // Nobody drives.
  EXPECT_TRUE(peer.Write(0, payload.data(), payload.size()));
  EXPECT_TRUE(Drive({&peer.owner}, [&] { return peer.owner.messages == 2; }));
  EXPECT_TRUE(Intact(peer.owner.received[1]));
}

TEST(TcpLoans, QueuedMessagesAreWrittenWhileNobodyDrives) {
  RawPeer peer(1);
  // More than a connection holds after a single sendmsg().
  std::size_t bytes = 0;
  for (Tag tag = 0; tag < 3; ++tag) {
    peer.owner.Send(1, tag, 100'000);
    bytes += kHeaderBytes + 100'000;
  }
  peer.owner.to(1).Poll();
  EXPECT_FALSE(peer.owner.to(1).Poll()) << "the lane is lent";
  EXPECT_TRUE(peer.owner.to(1).PrepareToSleep());
  EXPECT_TRUE(peer.owner.sent.empty());
  EXPECT_EQ(peer.owner.to(1).queued_messages(), 3U);
  ASSERT_TRUE(peer.Read(0, bytes));
  ASSERT_TRUE(
      Drive({&peer.owner}, [&] { return peer.owner.sent.size() == 3; }));
  EXPECT_EQ(peer.owner.to(1).queued_messages(), 0U);
}

// Ranks 0 and 1.
struct Pair {
  Pair(int lanes, int io_threads, std::size_t buffer_bytes) {
    std::vector<Socket> left, right;
    for (int i = 0; i < lanes; ++i) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0", buffer_bytes).value();
      left.push_back(std::move(made.one));
      right.push_back(std::move(made.other));
    }
    a.TakeOne(tcp_test::MakeLink(1, std::move(left), &a, io_threads));
    b.TakeOne(tcp_test::MakeLink(1, std::move(right), &b, io_threads));
  }
  LinkOwner a;
  LinkOwner b;
};

// Sizes on both sides of the limit, so that lanes are lent and not lent in
// turn.
std::size_t SizeNearTheLimit(std::mt19937& random) {
  constexpr std::array<std::size_t, 9> kSizes = {
      0,
      1,
      kHeaderBytes,
      8191,
      kLeastLentBytes - 1,
      kLeastLentBytes,
      kLeastLentBytes + (std::size_t{8} << 10),
      3 * kLeastLentBytes + 1,
      700'001};
  return kSizes[random() % kSizes.size()] + random() % 2;
}

TEST(TcpLoans, RandomStreamsNearTheLimitArriveInOrder) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const int lanes = 1 + static_cast<int>(seed % 3);
    Pair pair(lanes, 1 + static_cast<int>(seed % 4), seed % 2 * 8192);
    std::mt19937 random(seed);
    constexpr std::size_t kMessages = 120;
    for (Tag tag = 0; tag < kMessages; ++tag) {
      const int lane = static_cast<int>(random()) % lanes;
      pair.a.Send(1, tag, SizeNearTheLimit(random), std::abs(lane));
      pair.b.Send(1, tag, SizeNearTheLimit(random), std::abs(lane));
      while (random() % 3 == 0) pair.a.PollOnce();
      while (random() % 3 == 0) pair.b.PollOnce();
    }
    ASSERT_TRUE(Drive({&pair.a, &pair.b}, [&] {
      return pair.a.messages == kMessages && pair.b.messages == kMessages &&
             pair.a.sent.size() == kMessages && pair.b.sent.size() == kMessages;
    }));
    for (const LinkOwner* owner : {&pair.a, &pair.b}) {
      std::vector<Tag> next(4, 0);
      for (const Received& message : owner->received) {
        Tag& least = next[static_cast<std::size_t>(message.lane)];
        EXPECT_TRUE(Intact(message));
        EXPECT_GE(message.header.tag, least);
        least = message.header.tag + 1;
      }
      for (const auto& [tag, status] : owner->sent) EXPECT_TRUE(status.ok());
    }
  }
}

void ExpectDown(const LinkOwner& owner, const std::string& words) {
  ASSERT_EQ(owner.down.size(), 1U);
  const Status& why = owner.down[0].second;
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_EQ(why.message().rfind("rank 1 (127.0.0.1:", 0), 0U) << why.message();
  EXPECT_NE(why.message().find(words), std::string::npos) << why.message();
}

TEST(TcpLoans, ADeathInTheMiddleOfAPayloadIsReported) {
  RawPeer peer(1);
  const auto some = Pattern(1, 100'000);
  ASSERT_TRUE(peer.WriteHeader(0, 1, kLarge));
  ASSERT_TRUE(peer.AwaitHeaders(1));
  ASSERT_TRUE(peer.Write(0, some.data(), some.size()));
  peer.sockets[0].Close();
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return !peer.owner.down.empty(); }));
  ExpectDown(peer.owner,
             "the connection was closed by the peer, or its process has ended, "
             "in mid-message");
  EXPECT_EQ(peer.owner.messages, 0U);
}

// Bytes that the peer has not read turn its end into a reset.
TEST(TcpLoans, AResetWhileBothDirectionsAreLentIsReportedOnce) {
  for (int round = 0; round < 10; ++round) {
    RawPeer peer(2, 1 + round % 3);
    ASSERT_TRUE(peer.WriteHeader(1, 1, kLargerThanLent));
    ASSERT_TRUE(peer.AwaitHeaders(1));
    peer.owner.Send(1, 7, kLargerThanLent, 1);
    peer.owner.Send(1, 8, 10, 1);
    peer.owner.to(1).Poll();
    ASSERT_TRUE(tcp_test::WaitFor(peer.sockets[1], POLLIN));
    peer.sockets[1].Close();
    peer.sockets[0].Close();
    ASSERT_TRUE(
        Drive({&peer.owner}, [&] { return peer.owner.sent.size() == 2; }));
    ExpectDown(peer.owner, ", in mid-message");
    EXPECT_FALSE(peer.owner.sent[0].second.ok());
    EXPECT_FALSE(peer.owner.sent[1].second.ok());
  }
}

TEST(TcpLoans, WhatArrivedBeforeAResetIsStillRead) {
  RawPeer peer(2);
  const auto payload = Pattern(3, std::size_t{1} << 20);
  ASSERT_TRUE(peer.WriteHeader(1, 3, payload.size()));
  ASSERT_TRUE(peer.AwaitHeaders(1));
  ASSERT_TRUE(peer.Write(1, payload.data(), payload.size()));
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return peer.owner.messages == 1; }));
  ASSERT_TRUE(peer.WriteHeader(1, 4, 5));
  ASSERT_TRUE(peer.Write(1, payload.data(), 5));
  for (Socket& socket : peer.sockets) socket.Close();
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return !peer.owner.down.empty(); }));
  ASSERT_EQ(peer.owner.received.size(), 2U);
  EXPECT_TRUE(Intact(peer.owner.received[0]));
}

// The peer leaves as soon as it has read a message, before anybody has looked
// at the io thread that wrote it.
TEST(TcpLoans, WhatWasWrittenBeforeThePeerLeftHasBeenSent) {
  RawPeer peer(2);
  constexpr std::size_t kBytes = 400'000;  // A single loan.
  peer.owner.Send(1, 7, kBytes, 1);
  peer.link->Poll();
  ASSERT_TRUE(peer.Read(1, kHeaderBytes + kBytes));
  Header bye;
  bye.kind = MessageKind::kBye;
  const auto encoded = EncodeHeader(bye);
  ASSERT_TRUE(peer.Write(0, encoded.data(), encoded.size()));
  for (Socket& socket : peer.sockets) socket.Close();
  // The poller would look at the io thread first.
  for (int looks = 0; looks < 1000 && peer.owner.down.empty(); ++looks) {
    peer.link->Look(looks % 2);
  }
  ASSERT_EQ(peer.owner.down.size(), 1U);
  ASSERT_EQ(peer.owner.sent.size(), 1U);
  EXPECT_TRUE(peer.owner.sent[0].second.ok())
      << peer.owner.sent[0].second.ToString();
}

// Some loans are back and wait to be looked at, others are still lent.
TEST(TcpLoans, ACallbackMayCloseTheLinkWhileOtherLanesAreLent) {
  for (int round = 0; round < 10; ++round) {
    Pair pair(4, 1 + round % 3, 0);
    std::size_t sent_before = 0;  // A send may be over by then.
    pair.b.on_message = [&](const Header&) {
      sent_before = pair.b.sent.size();
      pair.b.to(1).Close();
    };
    for (int lane = 0; lane < 4; ++lane) {
      pair.a.Send(1, static_cast<Tag>(lane), 400'000, lane);
      pair.b.Send(1, static_cast<Tag>(lane), kLargerThanLent, lane);
    }
    ASSERT_TRUE(
        Drive({&pair.a, &pair.b}, [&] { return !pair.a.down.empty(); }));
    for (int i = 0; i < 10; ++i) pair.b.PollOnce();
    EXPECT_EQ(pair.b.messages, 1U);
    EXPECT_EQ(pair.b.sent.size(), sent_before);
    EXPECT_TRUE(pair.b.down.empty());
  }
}

}  // namespace
}  // namespace gradientflow
