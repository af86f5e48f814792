#include "transports/tcp/tcp_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/transports/tcp_pair.h"

namespace gradientflow {
namespace {

using tcp_test::End;
using tcp_test::Pair;
using tcp_test::RandomBytes;
using tcp_test::Received;

constexpr std::size_t kSizes[] = {
    0,    1,    31,   32,    33,    4095,   8127,   8159,   8160,   8161,
    8191, 8192, 8193, 16384, 65537, 262143, 262144, 262145, 5000000};

std::size_t BytesSent(const End& end) {
  std::size_t bytes = 0;
  for (const auto& payload : end.sent) bytes += payload.size();
  return bytes;
}

// Whether `to` has got what `from` sent on each lane, in order. Tags number
// the messages of all lanes in the order of sending.
void ExpectAllArrived(const End& from, const End& to) {
  ASSERT_EQ(to.events.messages.size(), from.sent.size());
  std::vector<Tag> last(64, 0);
  for (const Received& message : to.events.messages) {
    const Tag tag = message.header.tag;
    EXPECT_GE(tag + 1, last[static_cast<std::size_t>(message.lane)]);
    last[static_cast<std::size_t>(message.lane)] = tag + 1;
    EXPECT_EQ(message.payload, from.sent[tag]) << "message " << tag;
  }
  EXPECT_EQ(from.done.size(), from.sent.size());
  for (const auto& [cookie, status] : from.done) {
    EXPECT_TRUE(status.ok()) << cookie << status.ToString();
  }
}

class TcpLinkOver
    : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    const auto [at, lanes] = GetParam();
    pair_ = std::make_unique<Pair>(lanes, at);
    if (!pair_->valid()) {
      GTEST_SKIP() << "SKIPPED, NOT TESTED: this host has no address " << at;
    }
  }
  std::unique_ptr<Pair> pair_;
};

TEST_P(TcpLinkOver, DeliversEverySizeBothWaysInOrder) {
  std::mt19937_64 random(1);
  Pair& pair = *pair_;
  Tag tag = 0;
  for (const std::size_t bytes : kSizes) {
    const int lane = static_cast<int>(tag) % pair.a->link->lanes();
    pair.a->Send(lane, tag, RandomBytes(bytes, &random));
    pair.b->Send(lane, tag, RandomBytes(bytes, &random));
    ++tag;
  }
  EXPECT_EQ(pair.a->link->queued_messages(), tag);
  ASSERT_TRUE(pair.Drive([&] {
    return pair.a->events.messages.size() == tag &&
           pair.b->events.messages.size() == tag;
  }));
  ExpectAllArrived(*pair.a, *pair.b);
  ExpectAllArrived(*pair.b, *pair.a);
  EXPECT_EQ(pair.a->link->queued_messages(), 0u);
}

TEST_P(TcpLinkOver, DeliversRandomStreams) {
  Pair& pair = *pair_;
  std::mt19937_64 random(2);
  constexpr std::size_t kMessages = 400;
  for (Tag tag = 0; tag < kMessages; ++tag) {
    const int lane = static_cast<int>(
        random() % static_cast<unsigned>(pair.a->link->lanes()));
    const std::size_t bytes = random() % (std::size_t{1} << (random() % 18));
    pair.a->Send(lane, tag, RandomBytes(bytes, &random));
    pair.b->Send(lane, tag, RandomBytes(bytes / 2, &random));
    if (tag % 7 == 0) {
      pair.a->Poll();
      pair.b->Poll();
    }
  }
  ASSERT_TRUE(pair.Drive([&] {
    return pair.a->events.messages.size() == kMessages &&
           pair.b->events.messages.size() == kMessages;
  }));
  ExpectAllArrived(*pair.a, *pair.b);
  ExpectAllArrived(*pair.b, *pair.a);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TcpLinkOver,
                         testing::Combine(testing::Values("127.0.0.1:0",
                                                          "[::1]:0"),
                                          testing::Values(1, 2, 3, 4)));

TEST(TcpLink, ResumesPartialWritesThroughTinyBuffers) {
  Pair pair(2, "127.0.0.1:0", 4096);
  ASSERT_TRUE(pair.valid());
  std::mt19937_64 random(3);
  for (Tag tag = 0; tag < 6; ++tag) {
    pair.a->Send(static_cast<int>(tag % 2), tag, RandomBytes(300001, &random));
    pair.b->Send(static_cast<int>(tag % 2), tag, RandomBytes(200003, &random));
  }
  pair.a->link->Poll();
  EXPECT_GT(pair.a->link->queued_messages(), 0u);
  EXPECT_TRUE(pair.a->link->PrepareToSleep()) << "only room is waited for";
  ASSERT_TRUE(pair.Drive([&] {
    return pair.a->events.messages.size() == 6 &&
           pair.b->events.messages.size() == 6;
  }));
  ExpectAllArrived(*pair.a, *pair.b);
  ExpectAllArrived(*pair.b, *pair.a);
}

TEST(TcpLink, CoalescesManySmallMessages) {
  Pair pair(1, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  std::mt19937_64 random(4);
  for (Tag tag = 0; tag < 5000; ++tag) {
    pair.a->Send(0, tag, RandomBytes(tag % 97, &random));
  }
  EXPECT_TRUE(pair.a->done.empty()) << "no completion inside Send()";
  EXPECT_FALSE(pair.a->link->PrepareToSleep());
  ASSERT_TRUE(
      pair.Drive([&] { return pair.b->events.messages.size() == 5000; }));
  ExpectAllArrived(*pair.a, *pair.b);
}

TEST(TcpLink, APausedLaneWaitsAndTheOthersGoOn) {
  Pair pair(2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  bool closed_gate = true;
  pair.b->events.pause = [&](int lane, const Header&) {
    return lane == 1 && closed_gate;
  };
  std::mt19937_64 random(5);
  for (Tag tag = 0; tag < 20; ++tag) {
    pair.a->Send(static_cast<int>(tag % 2), tag, RandomBytes(100000, &random));
  }
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.messages.size() == 10; }));
  for (const Received& message : pair.b->events.messages) {
    EXPECT_EQ(message.lane, 0);
  }
  const int asked = pair.b->events.headers;
  pair.b->link->Resume(1);  // The gate is still closed: asked once more.
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.headers == asked + 1; }));
  closed_gate = false;
  pair.b->link->Resume(1);
  EXPECT_FALSE(pair.b->link->PrepareToSleep());
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.messages.size() == 20; }));
  ExpectAllArrived(*pair.a, *pair.b);
}

TEST(TcpLink, APausedLaneWithNothingToSendLetsTheDriverSleep) {
  Pair pair(1, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.b->events.pause = [](int, const Header&) { return true; };
  pair.a->Send(0, 0, std::vector<std::byte>(100));
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.headers == 1; }));
  EXPECT_TRUE(pair.b->link->PrepareToSleep());
  EXPECT_FALSE(pair.b->poller->Poll(std::chrono::milliseconds(1)));
}

TEST(TcpLink, CallbacksMaySendAndResume) {
  Pair pair(1, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.b->events.on_message = [&](int, const Header& header) {
    pair.b->Send(0, header.tag, pair.b->events.messages.back().payload);
  };
  std::mt19937_64 random(6);
  for (Tag tag = 0; tag < 50; ++tag) {
    pair.a->Send(0, tag, RandomBytes(10007, &random));
  }
  ASSERT_TRUE(pair.Drive([&] { return pair.a->events.messages.size() == 50; }));
  for (Tag tag = 0; tag < 50; ++tag) {
    EXPECT_EQ(pair.a->events.messages[tag].payload, pair.a->sent[tag]);
  }
}

TEST(TcpLink, ACallbackMayCloseTheLink) {
  Pair pair(3, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.b->events.on_message = [&](int, const Header&) {
    pair.b->link->Close();
  };
  for (Tag tag = 0; tag < 9; ++tag) {
    pair.a->Send(static_cast<int>(tag % 3), tag, std::vector<std::byte>(9000));
  }
  pair.b->Send(0, 0, std::vector<std::byte>(9000000));
  ASSERT_TRUE(pair.Drive([&] { return pair.a->events.downs == 1; }));
  EXPECT_EQ(pair.b->events.messages.size(), 1u);
  EXPECT_EQ(pair.b->events.downs, 0) << "no event after Close()";
  EXPECT_TRUE(pair.b->done.empty()) << "no completion after Close()";
}

TEST(TcpLink, TellsOfAPeerThatLeftAndFailsItsSends) {
  Pair pair(2, "127.0.0.1:0", 4096);
  ASSERT_TRUE(pair.valid());
  pair.a->Send(0, 7, std::vector<std::byte>(9000000));
  pair.a->Poll();
  const std::string address = pair.a->link->address();
  pair.b->link->Close();
  ASSERT_TRUE(pair.Drive([&] { return pair.a->events.downs == 1; }));
  EXPECT_EQ(pair.a->events.down_peer, 1);
  EXPECT_EQ(pair.a->events.down.code(), StatusCode::kUnavailable);
  EXPECT_NE(pair.a->events.down.message().find("rank 1 (" + address),
            std::string::npos)
      << pair.a->events.down.message();
  ASSERT_EQ(pair.a->done.size(), 1u);
  EXPECT_EQ(pair.a->done[0].first, 7u);
  EXPECT_EQ(pair.a->done[0].second.message(), pair.a->events.down.message());
  // Later ones fail as well, in the next Poll().
  pair.a->Send(1, 8, std::vector<std::byte>(10));
  EXPECT_EQ(pair.a->done.size(), 1u);
  pair.a->Poll();
  ASSERT_EQ(pair.a->done.size(), 2u);
  EXPECT_FALSE(pair.a->done[1].second.ok());
  EXPECT_EQ(pair.a->events.downs, 1);
}

TEST(TcpLink, EverythingThatArrivedBeforeTheEndIsDelivered) {
  Pair pair(4, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  std::mt19937_64 random(8);
  // Unread bytes at the closing end turn its close into a reset.
  for (int lane = 0; lane < 4; ++lane) {
    pair.b->Send(lane, static_cast<Tag>(lane), RandomBytes(50, &random));
  }
  pair.b->Poll();
  for (Tag tag = 0; tag < 40; ++tag) {
    pair.a->Send(static_cast<int>(tag % 4), tag, RandomBytes(2000, &random));
  }
  pair.a->link->Poll();
  ASSERT_EQ(pair.a->link->queued_messages(), 0u);
  pair.a->link->Close();
  pair.b->Send(2, 4, RandomBytes(50, &random));  // Into the reset.
  ASSERT_TRUE(tcp_test::Drive({pair.b.get()},
                              [&] { return pair.b->events.downs == 1; }));
  EXPECT_EQ(pair.b->events.messages.size(), 40u);
}

TEST(TcpLink, AfterGoodByeAPausedLaneIsStillRead) {
  Pair pair(2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  bool gate = true;
  pair.b->events.pause = [&](int lane, const Header&) {
    return lane == 1 && gate;
  };
  std::mt19937_64 random(9);
  pair.a->Send(1, 0, RandomBytes(5000, &random));
  pair.a->Send(0, 1, {}, MessageKind::kBye);
  pair.a->link->Poll();
  pair.a->link->Close();
  ASSERT_TRUE(tcp_test::Drive({pair.b.get()},
                              [&] { return pair.b->events.headers == 2; }));
  for (int i = 0; i < 20; ++i) pair.b->Poll();
  EXPECT_EQ(pair.b->events.downs, 0);
  gate = false;
  pair.b->link->Resume(1);
  ASSERT_TRUE(tcp_test::Drive({pair.b.get()},
                              [&] { return pair.b->events.downs == 1; }));
  ASSERT_EQ(pair.b->events.messages.size(), 2u);
  EXPECT_EQ(pair.b->events.messages[1].payload, pair.a->sent[0]);
  EXPECT_NE(pair.b->events.down.message().find("tcp): closed"),
            std::string::npos)
      << pair.b->events.down.message();
}

TEST(TcpLink, WithoutGoodByeAPausedLaneDoesNotHideADeath) {
  Pair pair(2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.b->events.pause = [](int lane, const Header&) { return lane == 1; };
  pair.a->Send(1, 0, std::vector<std::byte>(5000));
  pair.a->link->Poll();
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.headers == 1; }));
  pair.a->link->Close();
  ASSERT_TRUE(tcp_test::Drive({pair.b.get()},
                              [&] { return pair.b->events.downs == 1; }));
  EXPECT_EQ(pair.b->events.down.code(), StatusCode::kUnavailable);
}

TEST(TcpLink, PassesOnTheOwnersRefusal) {
  Pair pair(1, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.b->events.refuse = [](const Header& header) { return header.tag == 2; };
  for (Tag tag = 0; tag < 4; ++tag) {
    pair.a->Send(0, tag, std::vector<std::byte>(10));
  }
  ASSERT_TRUE(pair.Drive(
      [&] { return pair.a->events.downs == 1 && pair.b->events.downs == 1; }));
  EXPECT_EQ(pair.b->events.messages.size(), 2u);
  EXPECT_EQ(pair.b->events.down.message(), "refused by the owner");
}

TEST(TcpLink, RefusesControlMessagesBesideLaneZero) {
  Pair pair(2, "127.0.0.1:0");
  ASSERT_TRUE(pair.valid());
  pair.a->Send(1, 0, {}, MessageKind::kPing);
  ASSERT_TRUE(pair.Drive([&] { return pair.b->events.downs == 1; }));
  EXPECT_EQ(pair.b->events.down.code(), StatusCode::kDataLoss);
  EXPECT_EQ(pair.b->events.headers, 0);
  EXPECT_EQ(BytesSent(*pair.a), 0u);
}

// ---- A peer that is no TcpLink.

struct RawPeer {
  explicit RawPeer(int lanes) {
    std::vector<Socket> ours;
    for (int i = 0; i < lanes; ++i) {
      auto made = tcp_test::MakeConnection("127.0.0.1:0");
      if (!made) return;
      ours.push_back(std::move(made->one));
      sockets.push_back(std::move(made->other));
    }
    end = std::make_unique<End>(3, std::move(ours));
  }
  template <typename Bytes>
  bool Write(int lane, const Bytes& bytes, std::size_t count) {
    return Send(sockets[static_cast<std::size_t>(lane)], bytes.data(), count) ==
           static_cast<std::int64_t>(count);
  }
  bool DriveUntilDown() {
    return tcp_test::Drive({end.get()}, [&] { return end->events.downs == 1; });
  }

  std::vector<Socket> sockets;
  std::unique_ptr<End> end;
};

std::array<std::byte, kHeaderBytes> SomeHeader(std::size_t payload_bytes) {
  Header header;
  header.tag = 5;
  header.payload_bytes = payload_bytes;
  return EncodeHeader(header);
}

TEST(TcpLink, APeerThatClosesInMidHeaderIsReported) {
  RawPeer peer(1);
  ASSERT_TRUE(peer.Write(0, SomeHeader(10), 17));
  peer.sockets.clear();
  ASSERT_TRUE(peer.DriveUntilDown());
  EXPECT_EQ(peer.end->events.headers, 0);
  EXPECT_NE(peer.end->events.down.message().find("in mid-message"),
            std::string::npos);
}

TEST(TcpLink, APeerThatClosesInMidPayloadIsReported) {
  RawPeer peer(2);
  ASSERT_TRUE(peer.Write(1, SomeHeader(100000), kHeaderBytes));
  ASSERT_TRUE(peer.Write(1, std::vector<std::byte>(99999), 99999));
  peer.sockets.clear();
  ASSERT_TRUE(peer.DriveUntilDown());
  EXPECT_EQ(peer.end->events.headers, 1);
  EXPECT_TRUE(peer.end->events.messages.empty());
  EXPECT_EQ(peer.end->events.down.code(), StatusCode::kUnavailable);
  EXPECT_NE(peer.end->events.down.message().find("in mid-message"),
            std::string::npos);
}

TEST(TcpLink, GarbageInsteadOfAHeaderIsReportedWithWhatWasSeen) {
  RawPeer peer(2);
  const std::string garbage =
      "GET / HTTP/1.1\r\nHost: rank3\r\n\r\n............";
  ASSERT_TRUE(peer.Write(1, garbage, garbage.size()));
  ASSERT_TRUE(peer.DriveUntilDown());
  const Status& why = peer.end->events.down;
  EXPECT_EQ(why.code(), StatusCode::kDataLoss);
  EXPECT_NE(why.message().find("rank 3 (127.0.0.1:"), std::string::npos)
      << why.message();
  EXPECT_NE(why.message().find("lane 1"), std::string::npos) << why.message();
  EXPECT_NE(why.message().find("expected magic 0x4647, seen 0x4547"),
            std::string::npos)
      << why.message();
}

TEST(TcpLink, WhenOneConnectionEndsTheOthersAreEndedToo) {
  RawPeer peer(3);
  ASSERT_TRUE(peer.Write(2, SomeHeader(4), kHeaderBytes));
  ASSERT_TRUE(peer.Write(2, std::string("data"), 4));
  peer.sockets[0].Close();
  ASSERT_TRUE(tcp_test::Drive(
      {peer.end.get()}, [&] { return peer.end->events.messages.size() == 1; }));
  EXPECT_EQ(peer.end->events.downs, 0) << "the others may still bring more";
  for (std::size_t lane : {std::size_t{1}, std::size_t{2}}) {
    ASSERT_TRUE(tcp_test::WaitFor(peer.sockets[lane], POLLIN));
    char byte;
    EXPECT_EQ(Receive(peer.sockets[lane], &byte, 1), 0) << "not told";
    peer.sockets[lane].Close();
  }
  ASSERT_TRUE(peer.DriveUntilDown());
  EXPECT_EQ(peer.end->events.messages.size(), 1u);
}

}  // namespace
}  // namespace gradientflow
