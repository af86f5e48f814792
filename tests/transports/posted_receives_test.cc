#include "transports/posted_receives.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transports/tags.h"

namespace gradientflow {
namespace {

// Keeps the lanes that were looked at. Finds something on all of them, which
// may be all that was awaited.
class LookedAtLink final : public Link {
 public:
  explicit LookedAtLink(bool can_look) : can_look_(can_look) {}
  const char* kind() const override { return "looked at"; }
  const char* address() const override { return "here"; }
  int lanes() const override { return 3; }
  void Send(int, const OutMessage&) override {}
  bool Poll() override { return false; }
  void Resume(int) override {}
  int LaneToLook(std::uint64_t spread) const override {
    return can_look_ ? FixedLane(spread) : -1;
  }
  bool Look(int lane) override {
    looks.push_back(lane);
    if (arrived) arrived();
    return true;
  }
  bool PrepareToSleep() override { return true; }
  void WakeUp() override {}
  std::size_t queued_messages() const override { return 0; }
  void Close() override {}

  std::vector<int> looks;
  std::function<void()> arrived;

 private:
  const bool can_look_;
};

// The way to a peer, and its link.
struct Way {
  explicit Way(bool can_look = true) {
    auto link = std::make_unique<LookedAtLink>(can_look);
    to = link.get();
    way.Connect(std::move(link));
  }
  std::size_t looks() const { return to->looks.size(); }

  PeerLink way;
  LookedAtLink* to = nullptr;
};

// Returns how many of so many looks were all that there was to do.
int LooksAlone(PostedReceives& receives, int count) {
  int alone = 0;
  for (int i = 0; i < count; ++i) {
    bool moved = false;
    if (receives.Look(&moved)) ++alone;
  }
  return alone;
}

TEST(PostedReceives, TheOnlyOneIsLookedForOnTheLaneOfItsMessage) {
  for (const Tag tag : {CallTag(0, 1, 0, 0), CallTag(0, 1, 1, 0),
                        PointToPointTag(3, 0), PointToPointTag(3, 1)}) {
    for (const std::uint64_t bytes : {8U, 1U << 20}) {
      Way peer;
      PostedReceives receives;
      receives.Post(peer.way, tag, bytes);
      bool moved = false;
      EXPECT_TRUE(receives.Look(&moved));
      EXPECT_TRUE(moved);
      EXPECT_EQ(peer.to->looks,
                std::vector<int>{PeerLink::LaneOf(*peer.to, tag, bytes)});
    }
  }
}

TEST(PostedReceives, OthersAreNotForgottenMeanwhile) {
  Way peer;
  PostedReceives receives;
  receives.Post(peer.way, CallTag(0, 1), 8);
  EXPECT_EQ(LooksAlone(receives, 800), 700);
  EXPECT_EQ(peer.looks(), 800U);
}

// The Poller is asked less often, as the message may have to be answered.
TEST(PostedReceives, OthersAreNotForgottenWhileEachLookEndsAReceive) {
  Way peer;
  PostedReceives receives;
  peer.to->arrived = [&] { receives.End(); };
  int alone = 0;
  for (int i = 0; i < 640; ++i) {
    receives.Post(peer.way, CallTag(0, 1), 8);
    alone += LooksAlone(receives, 1);
  }
  EXPECT_EQ(alone, 630);
}

TEST(PostedReceives, OfSeveralNoneIsLookedFor) {
  Way peer, other;
  PostedReceives receives;
  EXPECT_EQ(LooksAlone(receives, 9), 0);
  receives.Post(peer.way, CallTag(0, 1), 8);
  receives.Post(other.way, CallTag(0, 2), 8);
  EXPECT_EQ(LooksAlone(receives, 9), 0);
  // Which of them is left is not known.
  receives.End();
  EXPECT_EQ(LooksAlone(receives, 9), 0);
  receives.End();
  EXPECT_EQ(LooksAlone(receives, 9), 0);
  EXPECT_EQ(peer.looks() + other.looks(), 0U);
  receives.Post(other.way, CallTag(0, 3), 8);
  EXPECT_GT(LooksAlone(receives, 9), 0);
  EXPECT_EQ(peer.looks(), 0U);
  EXPECT_EQ(other.looks(), 9U);
}

TEST(PostedReceives, WhatCannotBeLookedForIsThePollers) {
  Way blind(/*can_look=*/false);
  Way down;
  down.way.SetDown(true);
  PeerLink none;
  for (const PeerLink* way : {&blind.way, &down.way, &none}) {
    PostedReceives receives;
    receives.Post(*way, CallTag(0, 1), 8);
    EXPECT_EQ(LooksAlone(receives, 9), 0);
  }
  EXPECT_EQ(blind.looks() + down.looks(), 0U);
}

}  // namespace
}  // namespace gradientflow
