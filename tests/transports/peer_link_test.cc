#include "transports/peer_link.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transports/tags.h"

namespace gradientflow {
namespace {

// Keeps what is sent by it, with the lanes.
class KeepingLink final : public Link {
 public:
  const char* kind() const override { return "keeping"; }
  const char* address() const override { return "here"; }
  int lanes() const override { return 3; }
  void Send(int lane, const OutMessage& message) override {
    sent.emplace_back(lane, message);
  }
  bool Poll() override { return false; }
  void Resume(int) override {}
  bool PrepareToSleep() override { return true; }
  void WakeUp() override {}
  std::size_t queued_messages() const override { return sent.size(); }
  void Close() override {}

  std::vector<std::pair<int, OutMessage>> sent;
};

class PeerLinkTest : public ::testing::Test {
 protected:
  // The link gets one end, the test the other.
  KeepingLink& Connect() {
    auto link = std::make_unique<KeepingLink>();
    KeepingLink& kept = *link;
    way_.Connect(std::move(link));
    return kept;
  }
  static OutMessage MessageOf(std::uint64_t call) {
    OutMessage message;
    message.header.kind = MessageKind::kData;
    message.header.tag = CallTag(0, call);
    return message;
  }
  static MessageId IdOf(std::uint64_t call) {
    return MessageId(CallTag(0, call), 0);
  }
  static std::string TextOf(const OutMessage& message) {
    return {reinterpret_cast<const char*>(message.payload.data),
            message.payload.bytes};
  }

  PeerLink way_;
};

TEST_F(PeerLinkTest, WhatWaitsLeavesInItsOrderOnceThereIsALink) {
  way_.SetAsked();
  for (std::uint64_t call = 1; call <= 3; ++call) way_.Keep(MessageOf(call));
  EXPECT_TRUE(way_.keeps_any());
  EXPECT_FALSE(way_.up());
  const KeepingLink& link = Connect();
  EXPECT_FALSE(way_.keeps_any());
  EXPECT_TRUE(way_.up());
  ASSERT_EQ(link.sent.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(CallOf(link.sent[i].second.header.tag), i + 1);
    EXPECT_NE(link.sent[i].first, 0) << "lane 0 is for control messages";
  }
}

// The lanes that messages of `bytes` take under one name and many numbers.
std::set<int> LanesOf(Link& link, std::uint32_t name, std::uint64_t bytes) {
  std::set<int> lanes;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const Tag tag = PointToPointTag(name, i);
    lanes.insert(PeerLink::LaneOf(link, tag, bytes));
  }
  return lanes;
}

TEST_F(PeerLinkTest, LargeMessagesOfANameUseAllLanesAndSmallOnesShareOne) {
  Link& link = Connect();
  std::set<int> of_names;
  for (std::uint32_t name = 0; name < 300; ++name) {
    for (const std::uint64_t bytes : {0U, 8U, 8192U}) {
      const std::set<int> lanes = LanesOf(link, name, bytes);
      ASSERT_EQ(lanes.size(), 1U) << name << ", " << bytes << " bytes";
      of_names.insert(lanes.begin(), lanes.end());
    }
    EXPECT_EQ(LanesOf(link, name, 8193).size(), name < kNumberedTags ? 2U : 1U);
  }
  EXPECT_EQ(of_names, (std::set<int>{1, 2}));
}

TEST_F(PeerLinkTest, OfNumbersThatNobodyHasAskedForTheOldestAreDropped) {
  for (std::uint64_t call = 0; call < 1500; ++call) way_.Tell(IdOf(call), call);
  EXPECT_EQ(way_.control_queued(), 1024U);
  const KeepingLink& link = Connect();
  ASSERT_EQ(link.sent.size(), 1024U);
  EXPECT_EQ(link.sent.front().second.header.signature, 476U);
  EXPECT_EQ(link.sent.back().second.header.signature, 1499U);
}

TEST_F(PeerLinkTest, NothingIsDroppedOnceTheLinkHasBeenAskedFor) {
  way_.SetAsked();
  for (std::uint64_t call = 0; call < 1500; ++call) way_.Tell(IdOf(call), call);
  EXPECT_EQ(Connect().sent.size(), 1500U);
}

TEST_F(PeerLinkTest, ATextStaysUntilItHasLeft) {
  KeepingLink& link = Connect();
  way_.Say(MessageKind::kPong, std::string(kMaxControlBytes + 5, 'x'), 7);
  ASSERT_EQ(link.sent.size(), 1U);
  const auto& [lane, message] = link.sent.front();
  EXPECT_EQ(lane, 0);
  EXPECT_EQ(message.header.kind, MessageKind::kPong);
  EXPECT_EQ(message.header.tag, 7U);
  EXPECT_EQ(TextOf(message), std::string(kMaxControlBytes, 'x'));
  EXPECT_EQ(message.header.payload_bytes, kMaxControlBytes);
  EXPECT_EQ(way_.control_queued(), 1U);
  message.done(Status());
  EXPECT_EQ(way_.control_queued(), 0U);
}

TEST_F(PeerLinkTest, APeerThatReadsNothingGetsNoMoreTexts) {
  KeepingLink& link = Connect();
  for (int i = 0; i < 2000; ++i) way_.Say(MessageKind::kPong, "here");
  EXPECT_EQ(link.sent.size(), 1024U);
  link.sent.front().second.done(Status());
  way_.Say(MessageKind::kPong, "here");
  EXPECT_EQ(link.sent.size(), 1025U);
}

TEST_F(PeerLinkTest, SaysNothingToAPeerThatIsNotLinkedOrDown) {
  way_.Say(MessageKind::kBye, "");
  way_.Signal(Header());
  KeepingLink& link = Connect();
  EXPECT_TRUE(link.sent.empty());
  way_.Signal(Header());
  EXPECT_EQ(link.sent.size(), 1U);
  way_.SetDown(true);
  way_.Say(MessageKind::kAbort, "enough");
  way_.Signal(Header());
  EXPECT_EQ(link.sent.size(), 1U);
  EXPECT_EQ(way_.control_queued(), 0U);
}

}  // namespace
}  // namespace gradientflow
