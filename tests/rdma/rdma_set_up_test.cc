#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "tests/rdma/scripted_peer.h"
#include "transports/rdma/rdma_relay.h"

// How a link is set up with a peer that does not do its part.
namespace gradientflow::testing {
namespace {

using Kind = RailFrame::Kind;

class RdmaSetUp : public ::testing::Test {
 protected:
  // That the link has failed with this text, has told the peer and no one else,
  // and has let go of everything.
  void ExpectFailed(StatusCode code, const std::string& text) {
    Settle();
    ASSERT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kFails)
        << "expected: " << text;
    EXPECT_EQ(peer_.link->why().code(), code);
    EXPECT_NE(peer_.link->why().message().find(text), std::string::npos)
        << peer_.link->why().message();
    ASSERT_GE(peer_.control->told.size(), 1U);
    const auto last = DecodeRailFrame(peer_.control->told.back().payload);
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(last.value().kind, Kind::kFailed);
    EXPECT_EQ(last.value().text, peer_.link->why().message());
    EXPECT_TRUE(peer_.owner.down.empty());
    EXPECT_EQ(peer_.owner.headers, 0U);
    EXPECT_FALSE(peer_.link->settled()) << "the peer has not answered";
    peer_.Say(Kind::kFailed, "as you say");
    Settle();
    EXPECT_TRUE(peer_.link->settled());
    peer_.ExpectAllFree();
  }
  void Settle() {
    peer_.Settle([&] { peer_.link->PollSetup(); });
  }
  ScriptedPeer peer_;
};

TEST_F(RdmaSetUp, WorksWithAPeerThatDoesItsPart) {
  peer_.SetUp();
  EXPECT_TRUE(peer_.link->settled());
}

TEST_F(RdmaSetUp, APeerOnAnotherLinkLayer) {
  peer_.Begin();
  RailFrame offer = peer_.Offer();
  offer.ethernet = false;
  peer_.Say(offer);
  ExpectFailed(StatusCode::kUnavailable,
               "rank 1 (10.9.0.2:1): has fake1:1 on InfiniBand, and fake0:1 of "
               "rank 0 is on Ethernet");
}

TEST_F(RdmaSetUp, APeerWithoutAnAddressThatFits) {
  peer_.Begin();
  RailFrame offer = peer_.Offer();
  offer.gids[0].bytes[0] = 0x20;  // IPv6.
  offer.gids[0].type = IBV_GID_TYPE_IB;
  peer_.Say(offer);
  ExpectFailed(StatusCode::kUnavailable, "no address of its fake1:1 fits one");
}

TEST_F(RdmaSetUp, APeerWithOtherPlaces) {
  peer_.Begin();
  RailFrame offer = peer_.Offer();
  offer.slot_bytes = 4096;
  peer_.Say(offer);
  ExpectFailed(StatusCode::kInvalidArgument,
               "has 4096 bytes of memory for placed messages, expected 0");
}

TEST_F(RdmaSetUp, APeerWithAnImpossibleAddress) {
  peer_.Begin();
  RailFrame offer = peer_.Offer();
  offer.address.number = 1 << 24;
  peer_.Say(offer);
  ExpectFailed(StatusCode::kUnavailable, "RDMA of rank 0 (fake0:1) to rank 1");
}

TEST_F(RdmaSetUp, AnOfferThatComesTwice) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Say(peer_.Offer());
  ExpectFailed(StatusCode::kDataLoss, "offers RDMA twice");
}

TEST_F(RdmaSetUp, GarbageAtEveryStep) {
  for (int steps = 0; steps < 4; ++steps) {
    SCOPED_TRACE(steps);
    ScriptedPeer peer;
    peer.Begin();
    if (steps > 0) peer.Say(peer.Offer());
    if (steps > 1) peer.Say(Kind::kReady);
    if (steps > 2) peer.Probe();
    peer.Settle([&] { peer.link->PollSetup(); });
    peer.Deliver(MessageKind::kRail, "garbage");
    EXPECT_EQ(peer.link->outcome(), RdmaLink::Outcome::kFails);
    EXPECT_NE(peer.link->why().message().find(
                  "rank 1 (10.9.0.2:1): expected an RDMA set-up frame"),
              std::string::npos)
        << peer.link->why().message();
    EXPECT_TRUE(peer.owner.down.empty());
  }
}

TEST_F(RdmaSetUp, ThePeersReasonIsThisRanksReason) {
  peer_.Begin();
  peer_.Say(Kind::kFailed, "my card is broken");
  Settle();
  EXPECT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kFails);
  EXPECT_EQ(peer_.link->why().message(),
            "rank 1 (10.9.0.2:1): my card is broken");
  EXPECT_TRUE(peer_.link->settled());
}

// What has not passed when the time is over has failed, at whatever step.
TEST_F(RdmaSetUp, NoTimeIsLeftBeforeThisRankHasPassed) {
  for (int steps = 0; steps < 3; ++steps) {
    SCOPED_TRACE(steps);
    ScriptedPeer peer;
    peer.Begin();
    if (steps > 0) peer.Say(peer.Offer());
    if (steps > 1) peer.Say(Kind::kReady);
    peer.Settle([&] { peer.link->PollSetup(); });
    peer.link->GiveUp(Status(StatusCode::kDeadlineExceeded, "too late"));
    EXPECT_EQ(peer.link->outcome(), RdmaLink::Outcome::kFails);
    EXPECT_EQ(peer.link->why().message(), "too late");
    EXPECT_FALSE(peer.link->settled()) << "the peer has not answered";
    peer.Say(Kind::kFailed, "as you say");
    peer.Settle([&] { peer.link->PollSetup(); });
    EXPECT_TRUE(peer.link->settled());
  }
}

// The peer may have said so as well, and use the link.
TEST_F(RdmaSetUp, ThePeerDecidesWhenThisRankHasPassed) {
  for (const bool works : {true, false}) {
    SCOPED_TRACE(works);
    ScriptedPeer peer;
    peer.Begin();
    peer.Say(peer.Offer());
    peer.Say(Kind::kReady);
    peer.Probe();
    peer.Settle([&] { peer.link->PollSetup(); });
    peer.link->GiveUp(Status(StatusCode::kDeadlineExceeded, "too late"));
    EXPECT_EQ(peer.link->outcome(), RdmaLink::Outcome::kPending);
    EXPECT_FALSE(peer.link->settled());
    peer.Say(works ? Kind::kPassed : Kind::kFailed, works ? "" : "no time");
    peer.Settle([&] { peer.link->PollSetup(); });
    EXPECT_TRUE(peer.link->settled());
    EXPECT_EQ(peer.link->outcome(),
              works ? RdmaLink::Outcome::kWorks : RdmaLink::Outcome::kFails);
    if (!works) {
      EXPECT_EQ(peer.link->why().message(), "rank 1 (10.9.0.2:1): no time");
    }
  }
}

TEST_F(RdmaSetUp, AProbeOfOtherBytes) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Say(Kind::kReady);
  peer_.Write(peer_.offer.ring, kRingSlotBytes, 0);
  ExpectFailed(StatusCode::kDataLoss, "that are not its probe");
}

TEST_F(RdmaSetUp, AProbeThatIsTooShort) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Write(peer_.offer.ring, 100, 0);
  ExpectFailed(StatusCode::kDataLoss, "sent 100 bytes by RDMA");
}

TEST_F(RdmaSetUp, AProbeThatNeverComes) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Say(Kind::kReady);
  Settle();
  EXPECT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kPending);
  peer_.clock.Advance(std::chrono::seconds(2));
  ExpectFailed(StatusCode::kDeadlineExceeded,
               "nothing got through by RDMA from it within 2 s: fake0:1 (GID "
               "3, 10.9.0.1, MTU 1024) of rank 0 and fake1:1 (10.9.0.2, MTU "
               "1024)");
}

TEST_F(RdmaSetUp, AProbeThatDoesNotArriveThere) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.fake.SetCable("fake0", "fake1", false);
  peer_.Say(Kind::kReady);
  for (int i = 0; i < 30; ++i) {
    peer_.fake.Advance(std::chrono::milliseconds(100));
    peer_.link->PollSetup();
  }
  ExpectFailed(StatusCode::kDeadlineExceeded,
               "nothing got through by RDMA to it within 2 s");
}

// Between the peer's probe and this rank's last word, it waits. A peer that
// goes on as if it were adopted is served; garbage ends the set-up, and the
// owner hears nothing of a link that it has not got.
TEST_F(RdmaSetUp, GarbageAfterTheProbe) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Probe();
  Settle();
  peer_.Write({}, 0, 0x0001FFFF);
  ExpectFailed(StatusCode::kDataLoss, "immediate number");
}

TEST_F(RdmaSetUp, GarbageAfterThisRankHasPassed) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Say(Kind::kReady);
  peer_.Probe();
  Settle();
  peer_.Write({}, 0, 0x0001FFFF);
  Settle();
  EXPECT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kPending);
  EXPECT_TRUE(peer_.owner.down.empty());
  peer_.Say(Kind::kPassed);
  ASSERT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kWorks);
  peer_.link->Adopt();
  EXPECT_FALSE(peer_.link->PrepareToSleep());
  peer_.ExpectEnded(StatusCode::kDataLoss, "immediate number");
}

TEST_F(RdmaSetUp, FramesThatComeBeforeItIsAdoptedAreKept) {
  peer_.Begin();
  peer_.Say(peer_.Offer());
  peer_.Say(Kind::kReady);
  peer_.Probe();
  Settle();
  peer_.Frame(5, 300);
  Settle();
  EXPECT_EQ(peer_.owner.headers, 0U);
  peer_.Say(Kind::kPassed);
  peer_.link->Adopt();
  peer_.Settle();
  ASSERT_EQ(peer_.owner.received.size(), 1U);
  EXPECT_TRUE(Intact(peer_.owner.received[0]));
}

TEST_F(RdmaSetUp, APeerThatDiesAtEveryStep) {
  for (int steps = 0; steps < 5; ++steps) {
    SCOPED_TRACE(steps);
    ScriptedPeer peer;
    peer.Begin();
    if (steps > 0) peer.Say(peer.Offer());
    if (steps > 1) peer.Say(Kind::kReady);
    if (steps > 2) peer.Probe();
    peer.Settle([&] { peer.link->PollSetup(); });
    if (steps > 3) peer.Say(Kind::kPassed);
    peer.link->OnDown(1, Status(StatusCode::kUnavailable, "rank 1 is dead"));
    EXPECT_TRUE(peer.link->settled());
    EXPECT_TRUE(peer.owner.down.empty());
    if (steps < 4) {
      EXPECT_EQ(peer.link->outcome(), RdmaLink::Outcome::kFails);
      EXPECT_EQ(peer.link->why().message(), "rank 1 is dead");
      continue;
    }
    ASSERT_EQ(peer.link->outcome(), RdmaLink::Outcome::kWorks);
    peer.link->Adopt();
    peer.Settle();
    ASSERT_EQ(peer.owner.down.size(), 1U);
    EXPECT_EQ(peer.owner.down[0].second.message(), "rank 1 is dead");
  }
}

// A peer calls its second rail failed, and goes on sending for it: a frame is
// half there when that rail is left out.
TEST_F(RdmaSetUp, ALeftOutRailsFrameEndsNowhere) {
  ScriptedPeer second;
  peer_.Begin();
  second.Begin();
  RdmaRelay relay(2);
  relay.SetLink(1, 1, second.link);
  relay.SetLink(1, 0, peer_.link);
  second.Say(Kind::kFailed, "no more");
  Header header;
  header.kind = MessageKind::kRail;
  header.tag = 1;
  header.payload_bytes = 7;
  const auto landing = relay.OnHeader(1, 0, header);
  ASSERT_TRUE(landing.ok()) << landing.status().message();
  std::memcpy(landing.value().data, "garbage", 7);
  relay.SetLink(1, 1, nullptr);
  relay.OnMessage(1, 0, header);
  EXPECT_EQ(second.link->why().message(), "rank 1 (10.9.0.2:1): no more");
  // The next one is refused.
  EXPECT_EQ(relay.OnHeader(1, 0, header).status().message(),
            "rank 1: sent an RDMA set-up frame for rail 1, expected none");
  EXPECT_EQ(peer_.link->outcome(), RdmaLink::Outcome::kPending);
}

TEST_F(RdmaSetUp, MemoryThatMayNotBeLockedIsSaid) {
  peer_.fake.SetMemlock(0, 0);
  peer_.link->Begin();
  EXPECT_EQ(peer_.link->why().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(peer_.link->why().message().find("cannot register"),
            std::string::npos);
  EXPECT_EQ(peer_.control->told.size(), 1U);
}

}  // namespace
}  // namespace gradientflow::testing
