#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/rdma/scripted_peer.h"

// What a peer may not send over a queue pair ends the link, with an error that
// names the peer and what it has sent, and harms nothing else.
namespace gradientflow::testing {
namespace {

class HostileRdma : public ::testing::Test {
 protected:
  void SetUp() override { peer_.SetUp(); }
  ScriptedPeer peer_;
};

TEST_F(HostileRdma, AnHonestPeerIsServed) {
  peer_.Frame(5, 100);
  peer_.Frame(6, 0, 0);
  peer_.Settle();
  ASSERT_EQ(peer_.owner.received.size(), 2U);
  EXPECT_TRUE(Intact(peer_.owner.received[0]));
  EXPECT_TRUE(peer_.owner.down.empty());
  // A long one: the grants name landings, which are copied from.
  const auto pattern = Pattern(9, 5000);
  peer_.LongHeader(9, pattern.size(), 2);
  peer_.Settle();
  const Grant grant = peer_.GrantAt(2, 0);
  ASSERT_EQ(grant.bytes, 5000U);
  std::memcpy(&peer_.end->memory()[ScriptedPeer::kStageAt], pattern.data(),
              pattern.size());
  peer_.Write(grant.there, pattern.size(), {});
  peer_.Piece(2);
  peer_.Settle();
  ASSERT_EQ(peer_.owner.received.size(), 3U);
  EXPECT_TRUE(Intact(peer_.owner.received[2]));
  // The frame of the next message tells of the piece as well.
  peer_.LongHeader(9, pattern.size(), 2);
  peer_.Settle();
  std::memcpy(&peer_.end->memory()[ScriptedPeer::kStageAt], pattern.data(),
              pattern.size());
  peer_.Write(peer_.GrantAt(2, 1).there, pattern.size(), {});
  peer_.Frame(10, 100, 2, MessageKind::kData, /*filled=*/true);
  peer_.Settle();
  ASSERT_EQ(peer_.owner.received.size(), 5U);
  EXPECT_TRUE(Intact(peer_.owner.received[3]));
  EXPECT_EQ(peer_.owner.received[3].header.tag, 9U);
  EXPECT_TRUE(Intact(peer_.owner.received[4]));
  EXPECT_EQ(peer_.owner.received[4].header.tag, 10U);
  peer_.ExpectAllFree();
}

TEST_F(HostileRdma, AnImmediateNumberOfNoKind) {
  peer_.Write({}, 0, 0x0001FFFF);
  peer_.ExpectEnded(StatusCode::kDataLoss, "immediate number 131071");
}

TEST_F(HostileRdma, AFrameOfGarbage) {
  Header header;
  header.payload_bytes = 8;
  peer_.WriteFrame(header, 8, 1);
  peer_.Settle();
  ASSERT_EQ(peer_.owner.received.size(), 1U);
  std::fill_n(&peer_.end->memory()[ScriptedPeer::kStageAt], 100, '\x5A');
  Immediate frame;
  frame.lane = 1;
  peer_.Write(peer_.offer.ring.At(kRingSlotBytes), 100, Encode(frame));
  peer_.ExpectEnded(StatusCode::kDataLoss, "sent a frame that is none");
}

TEST_F(HostileRdma, FramesThatAreShorterOrLongerThanTheirMessage) {
  for (const std::size_t bytes : {0U, 39U, 41U, 139U, 141U, 4096U}) {
    SCOPED_TRACE(bytes);
    ScriptedPeer peer;
    peer.SetUp();
    Header header;
    header.payload_bytes = 100;
    peer.WriteFrame(header, 100, 1, bytes);
    peer.ExpectEnded(StatusCode::kDataLoss, "sent a frame of ");
    EXPECT_EQ(peer.owner.messages, 0U);
  }
}

TEST_F(HostileRdma, AFrameInTheMiddleOfALongMessage) {
  peer_.LongHeader(1, 100000, 3);
  peer_.Settle();
  peer_.Frame(2, 10, 3);
  peer_.ExpectEnded(StatusCode::kDataLoss,
                    "expected the pieces of the message before it");
  EXPECT_EQ(peer_.owner.messages, 0U);
}

TEST_F(HostileRdma, APieceThatNoGrantWasGivenFor) {
  peer_.Piece(4);
  peer_.ExpectEnded(StatusCode::kDataLoss, "filled a grant in lane 4");
}

TEST_F(HostileRdma, AFrameAfterAPieceThatNoGrantWasGivenFor) {
  peer_.Frame(1, 10, 4, MessageKind::kData, /*filled=*/true);
  peer_.ExpectEnded(StatusCode::kDataLoss, "filled a grant in lane 4");
  EXPECT_EQ(peer_.owner.messages, 0U);
}

TEST_F(HostileRdma, MorePiecesThanGrants) {
  peer_.LongHeader(1, 5000, 4);
  peer_.Settle();
  peer_.Piece(4);
  peer_.Piece(4);
  peer_.ExpectEnded(StatusCode::kDataLoss, "filled a grant in lane 4");
}

TEST_F(HostileRdma, CreditsForFramesThatWereNotSent) {
  peer_.owner.Send(1, 1, 10);
  peer_.Settle();
  peer_.Credits(2);
  peer_.ExpectEnded(StatusCode::kDataLoss, "gives back 2 slots of its ring");
}

TEST_F(HostileRdma, GrantsThatNobodyAskedFor) {
  peer_.GiveGrant(2, 0, {{peer_.end->At(0), 1}, 10});
  peer_.ExpectEnded(StatusCode::kDataLoss, "grants 10 bytes in lane 2");
}

TEST_F(HostileRdma, GrantsOfNothingOrTooMuch) {
  for (const std::uint32_t bytes : {0U, 5001U, 0xFFFFFFFFU}) {
    SCOPED_TRACE(bytes);
    ScriptedPeer peer;
    peer.SetUp();
    peer.owner.Send(1, 1, 5000, 2);
    peer.Settle();
    peer.GiveGrant(2, 0, {{peer.end->At(0), peer.end->region()->rkey}, bytes});
    peer.ExpectEnded(StatusCode::kDataLoss, "bytes in lane 2");
    ASSERT_EQ(peer.owner.sent.size(), 1U);
    EXPECT_EQ(peer.owner.sent[0].second.code(), StatusCode::kDataLoss);
  }
}

TEST_F(HostileRdma, GrantsOfMemoryThatThePeerDoesNotHave) {
  peer_.owner.Send(1, 1, 5000, 2);
  peer_.Settle();
  peer_.GiveGrant(2, 0, {{peer_.end->At(0), 0x12345}, 5000});
  peer_.ExpectEnded(StatusCode::kUnavailable, "a write ended with ");
}

TEST_F(HostileRdma, MoreFramesThanTheRingHasSlots) {
  // The link gives slots back; this peer does not wait for it.
  peer_.owner.pause = true;
  for (std::uint64_t i = 0; i < kRingSlots; ++i) peer_.Frame(i, 10, 3);
  peer_.Settle();
  EXPECT_TRUE(peer_.owner.down.empty());
  peer_.Frame(99, 10, 3);
  peer_.ExpectEnded(StatusCode::kDataLoss, "expected none before one of 16");
}

TEST_F(HostileRdma, PlacedMessagesWhereThereAreNoPlaces) {
  Immediate placed;
  placed.kind = ImmediateKind::kPlaced;
  placed.notice = 77;
  peer_.Number(placed);
  peer_.ExpectEnded(StatusCode::kDataLoss, "sent a placed message");
}

TEST_F(HostileRdma, MoreNoticesThanMayBeUnderWay) {
  ScriptedPeer peer(4096, 5);
  peer.SetUp();
  Immediate placed;
  placed.kind = ImmediateKind::kPlaced;
  for (int i = 0; i < 5; ++i) peer.Number(placed);
  peer.Settle();
  EXPECT_TRUE(peer.owner.down.empty());
  peer.Number(placed);
  peer.ExpectEnded(StatusCode::kDataLoss, "placed more than 5 messages");
}

TEST_F(HostileRdma, ControlMessagesThatBelongToTcp) {
  for (const MessageKind kind :
       {MessageKind::kPing, MessageKind::kPong, MessageKind::kAbort,
        MessageKind::kBye, MessageKind::kRail}) {
    ScriptedPeer peer;
    peer.SetUp();
    peer.Frame(1, 0, 0, kind);
    peer.ExpectEnded(StatusCode::kDataLoss, "expected it by TCP");
  }
}

TEST_F(HostileRdma, ControlMessagesInALaneOfData) {
  peer_.Frame(1, 0, 3, MessageKind::kCredit);
  peer_.ExpectEnded(StatusCode::kDataLoss, "expected it in lane 0");
}

// The card refuses it and ends the queue pair. It does not say who did what, so
// this rank waits for someone who does, and then blames no one.
TEST_F(HostileRdma, WritesBeyondTheMemoryThatItWasGiven) {
  peer_.LongHeader(1, 100000, 3);
  peer_.Settle();
  const Grant grant = peer_.GrantAt(3, 0);
  peer_.Write(grant.there.At(1), std::size_t{256} << 10, {}, 0);
  peer_.Settle();
  EXPECT_TRUE(peer_.owner.down.empty());
  peer_.clock.Advance(std::chrono::milliseconds(1001));
  peer_.ExpectEnded(StatusCode::kUnavailable, "no one has said why");
  EXPECT_EQ(peer_.fake.stats(0).refused_writes, 1U);
  EXPECT_EQ(peer_.control->told.back().header.kind, MessageKind::kRail)
      << "told the peer a cause that it does not know";
}

TEST_F(HostileRdma, RailFramesAfterTheSetUp) {
  peer_.Say(peer_.Offer());
  peer_.ExpectEnded(StatusCode::kDataLoss, "expected none any more");
}

TEST_F(HostileRdma, DataByTcp) {
  peer_.Deliver(MessageKind::kData, "abc");
  peer_.ExpectEnded(StatusCode::kDataLoss, "expected it by RDMA");
}

// Random numbers, frames and grants, of which most are wrong. Whatever they do,
// nothing of ours is overrun, which the address sanitizer and the fake's own
// checks see, and all slots come back.
TEST_F(HostileRdma, RandomWrites) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ScriptedPeer peer(seed % 2 == 0 ? 0 : 4096, 4);
    peer.SetUp();
    for (int i = 0; i < 3; ++i) {
      peer.owner.Send(1, random(), random() % 20000, random() % kRdmaLanes);
    }
    peer.Settle();
    for (int i = 0; i < 80 && peer.owner.down.empty(); ++i) {
      const int lane = static_cast<int>(random() % kRdmaLanes);
      switch (random() % 6) {
        case 0:
          peer.Frame(random() % 50, random() % 4000, lane, MessageKind::kData,
                     random() % 4 == 0);
          break;
        case 1:
          peer.LongHeader(random() % 50, 4057 + random() % 600000, lane);
          break;
        case 2:
          peer.Piece(lane);
          break;
        case 3:
          peer.GiveGrant(
              lane, static_cast<int>(random() % 2),
              {{peer.end->At(random() % 1000), peer.end->region()->rkey},
               static_cast<std::uint32_t>(random() % 20000)});
          break;
        case 4:
          peer.Credits(static_cast<int>(random() % 3));
          break;
        default:
          peer.Write({}, 0, random());
      }
      if (random() % 2 == 0) peer.Settle();
    }
    peer.Settle();
    if (peer.owner.down.empty()) peer.owner.to(1).Close();
    peer.ExpectAllFree();
    const std::size_t sent = peer.owner.sent.size();
    if (!peer.owner.down.empty()) {
      EXPECT_EQ(sent, 3U);
      EXPECT_EQ(peer.owner.down.size(), 1U);
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
