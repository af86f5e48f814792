#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "tests/rdma/scripted_peer.h"

// How a link that works uses its two ways, and how it ends.
namespace gradientflow::testing {
namespace {

class RdmaLinkTest : public ::testing::Test {
 protected:
  void SetUp() override { peer_.SetUp(); }
  LinkOwner& owner() { return peer_.owner; }
  ScriptedPeer peer_;
};

// ---- Streams

TEST_F(RdmaLinkTest, TheNextFrameTellsOfTheLastPieceOfAMessage) {
  const auto grant = [&](int place) {
    peer_.GiveGrant(2, place,
                    {{peer_.end->At(0), peer_.end->region()->rkey}, 20000});
    peer_.Settle();
    return peer_.Numbers();
  };
  owner().Send(1, 1, 20000, 2);
  owner().Send(1, 2, 20000, 2);
  owner().Send(1, 3, 10, 2);
  peer_.Settle();
  ASSERT_EQ(peer_.Numbers().size(), 1U);
  for (int message = 0; message < 2; ++message) {
    const auto numbers = grant(message);
    ASSERT_EQ(numbers.size(), 1U);
    EXPECT_EQ(numbers[0].kind, ImmediateKind::kFrame);
    EXPECT_TRUE(numbers[0].filled);
    EXPECT_EQ(numbers[0].lane, 2);
  }
  // Nothing waits behind the last one.
  owner().Send(1, 4, 20000, 2);
  peer_.Settle();
  ASSERT_EQ(peer_.Numbers().size(), 1U);
  const auto numbers = grant(0);
  ASSERT_EQ(numbers.size(), 1U);
  EXPECT_EQ(numbers[0].kind, ImmediateKind::kPiece);
  EXPECT_EQ(owner().sent.size(), 4U);
}

TEST_F(RdmaLinkTest, IfTheRingIsFullThePieceIsToldOfByItself) {
  owner().Send(1, 1, 20000, 2);
  for (int i = 1; i < kRingSlots; ++i) owner().Send(1, 1, 10, 1);
  owner().Send(1, 2, 20000, 2);
  peer_.Settle();
  ASSERT_EQ(peer_.Numbers().size(), std::size_t{kRingSlots});
  peer_.GiveGrant(2, 0, {{peer_.end->At(0), peer_.end->region()->rkey}, 20000});
  peer_.Settle();
  auto numbers = peer_.Numbers();
  ASSERT_EQ(numbers.size(), 1U);
  EXPECT_EQ(numbers[0].kind, ImmediateKind::kPiece);
  peer_.Credits(1);
  peer_.Settle();
  numbers = peer_.Numbers();
  ASSERT_EQ(numbers.size(), 1U) << "the next frame, when there is room";
  EXPECT_EQ(numbers[0].kind, ImmediateKind::kFrame);
  EXPECT_FALSE(numbers[0].filled);
  EXPECT_TRUE(owner().down.empty());
}

// A long message of tag 1, whose end the frame of tag 2 tells.
class RdmaFilledFrame : public RdmaLinkTest {
 protected:
  static constexpr std::size_t kBytes = 20000;
  void Come() {
    peer_.LongHeader(1, kBytes, 2);
    peer_.Settle();
    const Grant grant = peer_.GrantAt(2, 0);
    ASSERT_EQ(grant.bytes, kBytes);
    const auto pattern = Pattern(1, kBytes);
    std::memcpy(&peer_.end->memory()[ScriptedPeer::kStageAt], pattern.data(),
                kBytes);
    peer_.Write(grant.there, kBytes, {});
    ASSERT_TRUE(owner().received.empty());
    peer_.Frame(2, 10, 2, MessageKind::kData, /*filled=*/true);
    peer_.Settle();
  }
};

TEST_F(RdmaFilledFrame, ThatIsPausedStillEndsTheMessageBeforeIt) {
  owner().pause_if = [](int, const Header& header) { return header.tag == 2; };
  Come();
  ASSERT_EQ(owner().received.size(), 1U);
  EXPECT_TRUE(Intact(owner().received[0]));
  EXPECT_EQ(owner().headers, 2U);
  owner().pause_if = nullptr;
  peer_.link->Resume(2);
  peer_.Settle();
  ASSERT_EQ(owner().received.size(), 2U);
  EXPECT_TRUE(Intact(owner().received[1]));
  EXPECT_TRUE(owner().down.empty());
}

TEST_F(RdmaFilledFrame, IsNotLookedAtIfTheMessageBeforeItClosesTheLink) {
  owner().on_message = [&](const Header&) { peer_.link->Close(); };
  Come();
  EXPECT_EQ(owner().received.size(), 1U);
  EXPECT_EQ(owner().headers, 1U);
  EXPECT_TRUE(owner().down.empty());
  peer_.ExpectAllFree();
}

// ---- Control messages

// The owner has one place for them, to which both ways would write.
TEST_F(RdmaLinkTest, AControlMessageByTcpIsHandedOnWhenItIsComplete) {
  Header header;
  header.kind = MessageKind::kPong;
  header.payload_bytes = 5;
  const auto landing = peer_.link->OnHeader(1, 0, header);
  ASSERT_TRUE(landing.ok());
  std::memcpy(landing.value().data, "he", 2);
  EXPECT_EQ(owner().headers, 0U);
  peer_.Frame(7, 0, 0, MessageKind::kCredit);
  peer_.Settle();
  ASSERT_EQ(owner().received.size(), 1U);
  std::memcpy(landing.value().data + 2, "llo", 3);
  peer_.link->OnMessage(1, 0, header);
  ASSERT_EQ(owner().received.size(), 2U);
  const auto& payload = owner().received[1].payload;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(payload.data()),
                        payload.size()),
            "hello");
}

TEST_F(RdmaLinkTest, APausedControlMessageIsOfferedAgain) {
  owner().pause = true;
  peer_.Deliver(MessageKind::kPong, "one");
  EXPECT_TRUE(owner().received.empty());
  EXPECT_TRUE(
      peer_.link->OnHeader(1, 0, Header{MessageKind::kPing}).value().paused);
  EXPECT_TRUE(peer_.link->PrepareToSleep());
  owner().pause = false;
  peer_.link->Resume(0);
  EXPECT_FALSE(peer_.link->PrepareToSleep());
  peer_.Settle();
  ASSERT_EQ(owner().received.size(), 1U);
  EXPECT_EQ(owner().received[0].payload.size(), 3U);
  EXPECT_FALSE(
      peer_.link->OnHeader(1, 0, Header{MessageKind::kPing}).value().paused);
}

TEST_F(RdmaLinkTest, AGoodByeLeavesWhenThePeersCardHasEverything) {
  const std::size_t told = peer_.control->told.size();
  owner().Send(1, 1, 100);
  owner().Send(1, 2, 0, 0, MessageKind::kBye);
  owner().PollOnce();
  EXPECT_EQ(peer_.control->told.size(), told);
  EXPECT_GT(peer_.link->queued_messages(), 0U);
  peer_.Settle();
  ASSERT_EQ(peer_.control->told.size(), told + 1);
  EXPECT_EQ(peer_.control->told.back().header.kind, MessageKind::kBye);
  EXPECT_EQ(peer_.link->queued_messages(), 0U);
}

TEST_F(RdmaLinkTest, WithAGoodByeToSendItDoesNotSleep) {
  ASSERT_TRUE(peer_.link->PrepareToSleep());
  owner().Send(1, 2, 0, 0, MessageKind::kBye);
  EXPECT_FALSE(peer_.link->PrepareToSleep());
}

TEST_F(RdmaLinkTest, AGoodByeThatCannotLeaveEndsWithTheReason) {
  owner().Send(1, 1, 100000);
  owner().Send(1, 2, 0, 0, MessageKind::kBye);
  owner().PollOnce();
  peer_.Write({}, 0, 0x0001FFFF);
  peer_.ExpectEnded(StatusCode::kDataLoss, "immediate number");
  ASSERT_EQ(owner().sent.size(), 2U);
  EXPECT_EQ(owner().sent[1].second.code(), StatusCode::kDataLoss);
  owner().Send(1, 3, 0, 0, MessageKind::kPing);
  peer_.Settle();
  ASSERT_EQ(owner().sent.size(), 3U) << "a send after the end ends, too";
}

// ---- The cause

TEST_F(RdmaLinkTest, ThePeerIsToldWhyByTcpBeforeItCloses) {
  peer_.fake.FailMessage(0, 1, IBV_WC_RETRY_EXC_ERR);
  owner().Send(1, 1, 100);
  peer_.ExpectEnded(StatusCode::kUnavailable,
                    "RDMA of rank 0 (fake0:1) to rank 1 (10.9.0.2:1) has "
                    "failed: a write ended with transport retry counter");
  const auto& last = peer_.control->told.back();
  EXPECT_EQ(last.header.kind, MessageKind::kAbort);
  EXPECT_EQ(last.header.tag, static_cast<Tag>(StatusCode::kUnavailable));
  EXPECT_EQ(last.payload, owner().down[0].second.message());
  EXPECT_TRUE(peer_.control->closed);
}

TEST_F(RdmaLinkTest, EveryStatusOfACompletionIsNamed) {
  for (const ibv_wc_status status :
       {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR,
        IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_FATAL_ERR,
        IBV_WC_GENERAL_ERR}) {
    ScriptedPeer peer;
    peer.SetUp();
    peer.fake.FailMessage(0, 2, status);
    peer.owner.Send(1, 1, 100);
    peer.owner.Send(1, 2, 100);
    peer.owner.Send(1, 3, 100000);
    peer.ExpectEnded(StatusCode::kUnavailable,
                     peer.fake.api(0)->wc_status_str(status));
    ASSERT_EQ(peer.owner.sent.size(), 3U);
    EXPECT_EQ(peer.owner.sent[2].second.message(),
              peer.owner.down[0].second.message());
  }
}

// Work requests are flushed after an error. Here the first that is seen is such
// a one, and what comes afterwards has the cause.
TEST_F(RdmaLinkTest, ACauseThatComesAfterAFlushCounts) {
  const Grant nowhere = {{1, 2}, 3};
  peer_.Write(nowhere.there, 100, {});
  peer_.Settle();
  ASSERT_TRUE(owner().down.empty()) << owner().down[0].second.message();
  peer_.fake.Inject("fake0", IBV_EVENT_DEVICE_FATAL);
  peer_.ExpectEnded(StatusCode::kUnavailable, "this rank's device says: ");
}

TEST_F(RdmaLinkTest, EventsOfItsPortAndDeviceEndIt) {
  struct Case {
    const char* what;
    void (*happen)(FakeVerbs* fake);
    const char* text;
  };
  const Case cases[] = {
      {"port", [](FakeVerbs* fake) { fake->SetPort("fake0", 1, false); },
       "port error"},
      {"address", [](FakeVerbs* fake) { fake->SetGid("fake0", 1, 3, {}); },
       "its address is gone"},
      {"other address",
       [](FakeVerbs* fake) {
         fake->SetGid("fake0", 1, 3, {"10.9.0.77", IBV_GID_TYPE_ROCE_V2});
       },
       "its address is gone"},
      {"removed", [](FakeVerbs* fake) { fake->RemoveDevice("fake0"); },
       "catastrophic"},
      {"queue",
       [](FakeVerbs* fake) { fake->Inject("fake0", IBV_EVENT_CQ_ERR); }, "CQ"},
      {"poll", [](FakeVerbs* fake) { fake->FailCall(0, "poll_cq", 1, EIO); },
       "its completion queue cannot be read"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    ScriptedPeer peer;
    peer.SetUp();
    one.happen(&peer.fake);
    peer.ExpectEnded(StatusCode::kUnavailable, "RDMA of rank 0 (fake0:1)");
    peer.ExpectEnded(StatusCode::kUnavailable, one.text);
  }
}

TEST_F(RdmaLinkTest, EventsThatConcernOthersDoNot) {
  // An address that this connection does not use, as temporary ones of IPv6.
  peer_.fake.SetGid("fake0", 1, 2, {});
  peer_.fake.SetGid("fake0", 1, 9, {"10.9.9.9", IBV_GID_TYPE_ROCE_V2});
  peer_.fake.Inject("fake0", IBV_EVENT_PORT_ERR, 2);
  peer_.fake.Inject("fake0", IBV_EVENT_SM_CHANGE);
  peer_.Settle();
  EXPECT_TRUE(owner().down.empty());
  peer_.Frame(1, 10);
  peer_.Settle();
  EXPECT_EQ(owner().received.size(), 1U);
}

// ---- Long messages

TEST_F(RdmaLinkTest, AGrantIsFilledByWritesAsLongAsTheDeviceMakes) {
  constexpr std::size_t kBytes = 100000;
  constexpr std::size_t kAt = std::size_t{512} << 10;
  ScriptedPeer peer(8192, 4, 30000);
  peer.SetUp();
  const BufferView memory = peer.places->Allocate(kBytes).value();
  const auto pattern = Pattern(1, kBytes);
  std::copy(pattern.begin(), pattern.end(), memory.data);
  OutMessage message;
  message.header.payload_bytes = kBytes;
  message.payload = {memory.data, kBytes, {}};
  int done = 0;
  message.done = {[](void* self, std::uint64_t, std::uint32_t, const Status&) {
                    ++*static_cast<int*>(self);
                  },
                  &done, 0};
  peer.link->Send(1, message);
  peer.Settle();
  const FakeVerbsStats before = peer.fake.stats(0);
  peer.GiveGrant(1, 0, {{peer.end->At(kAt), peer.end->region()->rkey}, kBytes});
  peer.Settle();
  EXPECT_EQ(peer.fake.stats(0).writes - before.writes, 4U);
  EXPECT_EQ(peer.fake.stats(0).writes_with_imm - before.writes_with_imm, 1U)
      << "the peer is told once";
  EXPECT_EQ(std::memcmp(&peer.end->memory()[kAt], pattern.data(), kBytes), 0);
  EXPECT_EQ(done, 1);
  peer.places->Free(memory);
}

// ---- Sleeping

TEST_F(RdmaLinkTest, AQueueThatCannotBeReadKeepsItAwake) {
  peer_.fake.FailCall(0, "poll_cq", 1, EIO);
  EXPECT_FALSE(peer_.link->PrepareToSleep());
}

TEST_F(RdmaLinkTest, WhatWasPutLeavesBeforeItSleeps) {
  ScriptedPeer peer(8192, 4);
  peer.SetUp();
  ASSERT_TRUE(peer.link->PrepareToSleep());
  const BufferView here = peer.places->slots();
  const ConstBufferView piece = {here.data, 100, {}};
  peer.places->Put(1, {&piece, 1}, peer.places->SlotsOf(1), 3, {});
  EXPECT_FALSE(peer.link->PrepareToSleep());
  const std::uint64_t before = peer.fake.stats(0).writes_with_imm;
  peer.Settle();
  EXPECT_EQ(peer.fake.stats(0).writes_with_imm, before + 1);
  EXPECT_TRUE(peer.link->PrepareToSleep());
}

// Two writes into the peer's memory, and how many have ended.
class RdmaPuts : public RdmaLinkTest {
 protected:
  RdmaPuts() : peer(8192, 4) {
    peer.SetUp();
    for (const std::uint32_t notice : {1, 2}) {
      const ConstBufferView piece = {peer.places->slots().data, 100, {}};
      peer.places->Put(1, {&piece, 1}, peer.places->SlotsOf(1), notice,
                       {[](void* self, std::uint64_t, std::uint32_t,
                           const Status&) { ++*static_cast<int*>(self); },
                        &dones, 0});
    }
  }
  ScriptedPeer peer;
  int dones = 0;
};

TEST_F(RdmaPuts, EndWhenTheCardHasRead) {
  EXPECT_EQ(dones, 0);
  peer.Settle();
  EXPECT_EQ(dones, 2);
}

TEST_F(RdmaPuts, OfASinkThatIsGoneTellNobody) {
  peer.places->SetSink(nullptr);
  peer.Settle();
  EXPECT_EQ(dones, 0);
}

TEST_F(RdmaPuts, OfALinkThatIsDownTellNobody) {
  peer.link->OnDown(1, Status(StatusCode::kUnavailable, "rank 1 is gone"));
  peer.Settle();
  EXPECT_EQ(owner().down.size() + peer.owner.down.size(), 1U);
  EXPECT_EQ(dones, 0);
}

TEST_F(RdmaLinkTest, ACompletionWakesTheSleeper) {
  ASSERT_TRUE(peer_.link->PrepareToSleep());
  peer_.Frame(1, 10);
  EXPECT_TRUE(owner().poller()->Poll(std::chrono::seconds(10)));
  EXPECT_EQ(owner().received.size(), 1U);
}

// ---- Closing

struct Closer {
  RdmaLink* link;
  int runs = 0;
};

TEST_F(RdmaLinkTest, NoCompletionRunsAfterOneHasClosedTheLink) {
  Closer closer{peer_.link};
  for (int i = 0; i < 3; ++i) {
    OutMessage message;
    message.done = {
        [](void* self, std::uint64_t, std::uint32_t, const Status&) {
          ++static_cast<Closer*>(self)->runs;
          static_cast<Closer*>(self)->link->Close();
        },
        &closer, 0};
    peer_.link->Send(1, message);
  }
  peer_.Settle();
  EXPECT_EQ(closer.runs, 1);
}

}  // namespace
}  // namespace gradientflow::testing
