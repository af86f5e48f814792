#include "transports/tcp/tcp_link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/transports/link_owner.h"
#include "tests/transports/tcp_pair.h"

// What is particular to TCP: several connections, their buffers, and how they
// end. link_conformance.cc tests the promises of every link.
namespace gradientflow {
namespace {

using testing::Drive;
using testing::Intact;
using testing::LinkOwner;
using testing::Received;

// Ranks 0 and 1, linked by several connections.
struct Pair {
  Pair(int io_threads, int lanes, std::string_view at,
       std::size_t buffer_bytes = 0) {
    std::vector<Socket> left, right;
    for (int i = 0; i < lanes; ++i) {
      auto made = tcp_test::MakeConnection(at, buffer_bytes);
      if (!made) return;
      left.push_back(std::move(made->one));
      right.push_back(std::move(made->other));
    }
    valid = true;
    a.TakeOne(tcp_test::MakeLink(1, std::move(left), &a, io_threads));
    b.TakeOne(tcp_test::MakeLink(1, std::move(right), &b, io_threads));
  }
  bool DriveBoth(const std::function<bool()>& until) {
    return Drive({&a, &b}, until);
  }

  bool valid = false;
  LinkOwner a;
  LinkOwner b;
};

void ExpectAllArrived(const LinkOwner& to, std::size_t count) {
  ASSERT_EQ(to.received.size(), count);
  std::vector<Tag> next(64, 0);
  for (const Received& message : to.received) {
    EXPECT_TRUE(Intact(message)) << "message " << message.header.tag;
    EXPECT_GE(message.header.tag, next[static_cast<std::size_t>(message.lane)]);
    next[static_cast<std::size_t>(message.lane)] = message.header.tag + 1;
  }
}

class TcpLinkOver
    : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {
 protected:
  void SetUp() override {
    const auto [at, lanes, io_threads] = GetParam();
    pair_ = std::make_unique<Pair>(io_threads, lanes, at);
    if (!pair_->valid) {
      GTEST_SKIP() << "SKIPPED, NOT TESTED: this host has no address " << at;
    }
  }
  std::unique_ptr<Pair> pair_;
};

TEST_P(TcpLinkOver, DeliversRandomStreams) {
  Pair& pair = *pair_;
  std::mt19937 random(2);
  constexpr std::size_t kMessages = 400;
  for (Tag tag = 0; tag < kMessages; ++tag) {
    const int lane = static_cast<int>(
        random() % static_cast<unsigned>(pair.a.to(1).lanes()));
    const std::size_t bytes = random() % (std::size_t{1} << (random() % 20));
    pair.a.Send(1, tag, bytes, lane);
    pair.b.Send(1, tag, bytes / 2, lane);
    if (tag % 7 == 0) {
      pair.a.PollOnce();
      pair.b.PollOnce();
    }
  }
  ASSERT_TRUE(pair.DriveBoth([&] {
    return pair.a.received.size() == kMessages &&
           pair.b.received.size() == kMessages;
  }));
  ExpectAllArrived(pair.a, kMessages);
  ExpectAllArrived(pair.b, kMessages);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TcpLinkOver,
                         ::testing::Combine(::testing::Values("127.0.0.1:0",
                                                              "[::1]:0"),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(0, 1, 3)));

// By number of io threads.
class TcpLinkTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(IoThreads, TcpLinkTest, ::testing::Values(0, 1, 3));

TEST_P(TcpLinkTest, ResumesPartialWritesThroughTinyBuffers) {
  Pair pair(GetParam(), 2, "127.0.0.1:0", 4096);
  ASSERT_TRUE(pair.valid);
  for (Tag tag = 0; tag < 6; ++tag) {
    pair.a.Send(1, tag, 300001, static_cast<int>(tag % 2));
    pair.b.Send(1, tag, 200003, static_cast<int>(tag % 2));
  }
  pair.a.to(1).Poll();
  EXPECT_GT(pair.a.to(1).queued_messages(), 0U);
  EXPECT_TRUE(pair.a.to(1).PrepareToSleep()) << "only room is waited for";
  ASSERT_TRUE(pair.DriveBoth([&] {
    return pair.a.received.size() == 6 && pair.b.received.size() == 6;
  }));
  ExpectAllArrived(pair.a, 6);
  ExpectAllArrived(pair.b, 6);
}

TEST_P(TcpLinkTest, ALookFindsWhatThePollerWasNotAskedFor) {
  Pair pair(GetParam(), 3, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid);
  Link& to = pair.b.to(1);
  const int lane = to.LaneToLook(5);
  EXPECT_EQ(lane, pair.a.to(1).DataLane(5));
  EXPECT_FALSE(to.Look(lane));
  for (Tag tag = 0; tag < 3; ++tag) pair.a.Send(1, tag, 3000 * tag, lane);
  ASSERT_TRUE(Drive({&pair.a}, [&] {
    to.Look(lane);
    return pair.b.received.size() == 3;
  }));
  ExpectAllArrived(pair.b, 3);
  EXPECT_FALSE(to.Look(lane));
}

// A pair whose second end has looked at a lane until the poller no longer
// watches it: what the first end sends there is no event.
struct UnwatchedPair : Pair {
  explicit UnwatchedPair(int io_threads) : Pair(io_threads, 3, "127.0.0.1:0") {
    if (!valid) return;
    for (int i = 0; i < 1000; ++i) {
      b.to(1).Poll();
      EXPECT_FALSE(b.to(1).Look(1));
    }
    a.Send(1, 0, 3000, 1);
    a.to(1).Poll();
    EXPECT_FALSE(b.poller()->Poll(std::chrono::milliseconds(20)));
    EXPECT_TRUE(b.received.empty());
  }
};

TEST_P(TcpLinkTest, ALaneThatIsLookedAtAllTheTimeIsNoLongerWatched) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  EXPECT_TRUE(pair.b.to(1).Look(1));
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, APollReadsAnUnwatchedLaneThatNobodyLooksAt) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  for (int i = 0; i < 4; ++i) pair.b.to(1).Poll();
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, AnUnwatchedLaneIsReadWhileAnotherOneIsLookedAt) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  ASSERT_TRUE(Drive({&pair.a}, [&] {
    pair.b.to(1).Poll();
    pair.b.to(1).Look(2);
    return pair.b.received.size() == 1;
  }));
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, WithoutLooksALaneIsSoonWatchedAgain) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  for (int i = 0; i < 20; ++i) pair.b.to(1).Poll();
  ExpectAllArrived(pair.b, 1);
  pair.a.Send(1, 1, 3000, 1);
  pair.a.to(1).Poll();
  EXPECT_TRUE(pair.b.poller()->Poll(std::chrono::seconds(20)));
  ExpectAllArrived(pair.b, 2);
}

TEST_P(TcpLinkTest, ASleeperIsWokenByALaneThatWasUnwatched) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  EXPECT_TRUE(pair.b.to(1).PrepareToSleep());
  EXPECT_TRUE(pair.b.poller()->Poll(std::chrono::seconds(20)));
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, TheEndOfAnUnwatchedLaneIsSeen) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  pair.a.to(1).Close();
  for (int i = 0; i < 4; ++i) {
    pair.b.to(1).Poll();
    pair.b.poller()->Poll(std::chrono::milliseconds(0));
  }
  EXPECT_EQ(pair.b.down.size(), 1U);
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, OnceAllAreWatchedTheEndIsSeenWithoutAPoll) {
  UnwatchedPair pair(GetParam());
  ASSERT_TRUE(pair.valid);
  pair.a.to(1).Close();
  EXPECT_TRUE(pair.b.to(1).WatchAll());
  // The message, and then the end.
  for (int i = 0; i < 2; ++i) {
    pair.b.poller()->Poll(std::chrono::milliseconds(0));
  }
  EXPECT_EQ(pair.b.down.size(), 1U);
  ExpectAllArrived(pair.b, 1);
}

// The connection is full in the other direction when it is no longer watched.
TEST_P(TcpLinkTest, AnUnwatchedLaneThatIsFullGoesOnWhenThereIsRoom) {
  Pair pair(GetParam(), 2, "127.0.0.1:0", 4096);
  ASSERT_TRUE(pair.valid);
  for (int i = 0; i < 1000; ++i) {
    pair.b.to(1).Poll();
    EXPECT_FALSE(pair.b.to(1).Look(1));
  }
  pair.b.Send(1, 0, 300001, 1);
  pair.b.to(1).Poll();
  EXPECT_EQ(pair.b.to(1).queued_messages(), 1U);
  pair.a.Send(1, 0, 300001, 1);
  ASSERT_TRUE(pair.DriveBoth([&] {
    return pair.a.received.size() == 1 && pair.b.received.size() == 1;
  }));
  ExpectAllArrived(pair.a, 1);
  ExpectAllArrived(pair.b, 1);
}

TEST_P(TcpLinkTest, AFullLaneIsThePollers) {
  Pair pair(GetParam(), 2, "127.0.0.1:0", 4096);
  ASSERT_TRUE(pair.valid);
  pair.a.Send(1, 0, 200003, 1);
  pair.a.to(1).Poll();
  EXPECT_EQ(pair.a.to(1).LaneToLook(0), -1) << "it waits for room";
  ASSERT_TRUE(pair.DriveBoth([&] { return pair.b.received.size() == 1; }));
  EXPECT_EQ(pair.a.to(1).LaneToLook(0), 1);
}

TEST_P(TcpLinkTest, AResetLosesNothingThatArrivedBefore) {
  Pair pair(GetParam(), 4, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid);
  // Unread bytes at the closing end turn its close into a reset.
  for (int lane = 0; lane < 4; ++lane) {
    pair.b.Send(1, static_cast<Tag>(lane), 50, lane);
  }
  pair.b.to(1).Poll();
  for (Tag tag = 0; tag < 40; ++tag) {
    pair.a.Send(1, tag, 2000, static_cast<int>(tag % 4));
  }
  pair.a.to(1).Poll();
  ASSERT_EQ(pair.a.to(1).queued_messages(), 0U);
  pair.a.to(1).Close();
  pair.b.Send(1, 4, 50, 2);  // Into the reset.
  ASSERT_TRUE(Drive({&pair.b}, [&] { return pair.b.down.size() == 1; }));
  ExpectAllArrived(pair.b, 40);
}

TEST_P(TcpLinkTest, AfterGoodByeAPausedLaneIsStillRead) {
  Pair pair(GetParam(), 2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid);
  bool gate = true;
  pair.b.pause_if = [&](int lane, const Header&) { return lane == 1 && gate; };
  pair.a.Send(1, 0, 5000, 1);
  pair.a.Send(1, 1, 0, 0, MessageKind::kBye);
  pair.a.to(1).Poll();
  pair.a.to(1).Close();
  ASSERT_TRUE(Drive({&pair.b}, [&] { return pair.b.headers == 2; }));
  for (int i = 0; i < 20; ++i) pair.b.PollOnce();
  EXPECT_TRUE(pair.b.down.empty());
  gate = false;
  pair.b.to(1).Resume(1);
  ASSERT_TRUE(Drive({&pair.b}, [&] { return pair.b.down.size() == 1; }));
  ASSERT_EQ(pair.b.received.size(), 2U);
  EXPECT_TRUE(Intact(pair.b.received[1]));
  const Status& why = pair.b.down[0].second;
  EXPECT_NE(why.message().find("tcp): closed"), std::string::npos)
      << why.message();
}

TEST_P(TcpLinkTest, WithoutGoodByeAPausedLaneDoesNotHideADeath) {
  Pair pair(GetParam(), 2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid);
  pair.b.pause_if = [](int lane, const Header&) { return lane == 1; };
  pair.a.Send(1, 0, 5000, 1);
  pair.a.to(1).Poll();
  ASSERT_TRUE(pair.DriveBoth([&] { return pair.b.headers == 1; }));
  pair.a.to(1).Close();
  ASSERT_TRUE(Drive({&pair.b}, [&] { return pair.b.down.size() == 1; }));
  EXPECT_EQ(pair.b.down[0].second.code(), StatusCode::kUnavailable);
}

TEST_P(TcpLinkTest, RefusesControlMessagesBesideLaneZero) {
  Pair pair(GetParam(), 2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid);
  pair.a.Send(1, 0, 0, 1, MessageKind::kPing);
  ASSERT_TRUE(pair.DriveBoth([&] { return pair.b.down.size() == 1; }));
  EXPECT_EQ(pair.b.down[0].second.code(), StatusCode::kDataLoss);
  EXPECT_EQ(pair.b.headers, 0U);
}

// ---- A peer that is no TcpLink.

struct RawPeer {
  RawPeer(int io_threads, int lanes) {
    std::vector<Socket> ours;
    for (int i = 0; i < lanes; ++i) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0");
      if (!made) return;
      ours.push_back(std::move(made->one));
      sockets.push_back(std::move(made->other));
    }
    owner.TakeOne(tcp_test::MakeLink(3, std::move(ours), &owner, io_threads));
  }
  template <typename Bytes>
  bool Write(std::size_t lane, const Bytes& bytes) {
    return Send(sockets[lane], bytes.data(), bytes.size()) ==
           static_cast<std::int64_t>(bytes.size());
  }

  std::vector<Socket> sockets;
  LinkOwner owner;
};

TEST_P(TcpLinkTest, GarbageInsteadOfAHeaderIsReportedWithWhatWasSeen) {
  RawPeer peer(GetParam(), 2);
  ASSERT_TRUE(peer.Write(1, std::string("GET / HTTP/1.1\r\nHost: rank3\r\n\r\n"
                                        "............")));
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return !peer.owner.down.empty(); }));
  const Status& why = peer.owner.down[0].second;
  EXPECT_EQ(why.code(), StatusCode::kDataLoss);
  EXPECT_NE(why.message().find("rank 3 (127.0.0.1:"), std::string::npos)
      << why.message();
  EXPECT_NE(why.message().find("lane 1"), std::string::npos) << why.message();
  EXPECT_NE(why.message().find("expected magic 0x4647, seen 0x4547"),
            std::string::npos)
      << why.message();
}

TEST_P(TcpLinkTest, WhenOneConnectionEndsTheOthersAreEndedToo) {
  RawPeer peer(GetParam(), 3);
  Header header;
  header.tag = 5;
  header.payload_bytes = 4;
  ASSERT_TRUE(peer.Write(2, EncodeHeader(header)));
  ASSERT_TRUE(peer.Write(2, std::string("data")));
  peer.sockets[0].Close();
  ASSERT_TRUE(
      Drive({&peer.owner}, [&] { return peer.owner.received.size() == 1; }));
  EXPECT_TRUE(peer.owner.down.empty()) << "the others may still bring more";
  for (std::size_t lane : {std::size_t{1}, std::size_t{2}}) {
    ASSERT_TRUE(tcp_test::WaitFor(peer.sockets[lane], POLLIN));
    char byte;
    EXPECT_EQ(Receive(peer.sockets[lane], &byte, 1), 0) << "not told";
    peer.sockets[lane].Close();
  }
  ASSERT_TRUE(Drive({&peer.owner}, [&] { return !peer.owner.down.empty(); }));
  EXPECT_EQ(peer.owner.received.size(), 1U);
}

}  // namespace
}  // namespace gradientflow
