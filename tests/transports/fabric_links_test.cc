#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/transports/fabric_ranks.h"
#include "transports/fabric.h"
#include "transports/link.h"
#include "transports/link_source.h"

// Fabrics that are not linked to all ranks at the beginning, driven in turn on
// one thread. Links come when a test lets them.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FabricRanks;
using testing::Room;
using testing::TransferEnding;
using testing::View;

// What the sources of all ranks know together.
struct Hub {
  explicit Hub(int size)
      : dialled(static_cast<std::size_t>(size),
                std::vector<bool>(static_cast<std::size_t>(size))),
        gone(static_cast<std::size_t>(size)) {}
  std::vector<std::vector<bool>> dialled;  // By who dials, then by whom.
  std::vector<bool> gone;
  bool open = true;  // Whether links are made at present.
};

// Delivers a prepared link once either side has asked for it.
class HubSource final : public LinkSource {
 public:
  HubSource(int rank, std::shared_ptr<Hub> hub, Sink* sink,
            std::vector<std::unique_ptr<Link>> links)
      : rank_(static_cast<std::size_t>(rank)),
        hub_(std::move(hub)),
        sink_(sink),
        links_(std::move(links)) {}

  Status Learn(const std::vector<std::string>&) override { return Status(); }
  void Dial(int peer) override {
    ++dials;
    hub_->dialled[rank_][static_cast<std::size_t>(peer)] = true;
  }
  std::string AddressOf(int peer) const override {
    return "address " + std::to_string(peer);
  }
  std::string TroubleWith(int) const override { return "no answer"; }
  bool Poll() override {
    bool moved = false;
    for (std::size_t r = 0; hub_->open && r < links_.size(); ++r) {
      if (!hub_->dialled[rank_][r] && !hub_->dialled[r][rank_]) continue;
      if (links_[r] == nullptr || (hub_->gone[r] && refused_.contains(r))) {
        continue;
      }
      if (hub_->gone[r]) {
        refused_.insert(r);
        sink_->OnGone(static_cast<int>(r),
                      Status(StatusCode::kUnavailable, "refused"));
      } else {
        sink_->OnLink(static_cast<int>(r), std::move(links_[r]));
      }
      moved = true;
    }
    return moved;
  }
  bool busy() const override { return false; }
  std::chrono::nanoseconds Patience() const override { return seconds(1); }

  int dials = 0;

 private:
  const std::size_t rank_;
  const std::shared_ptr<Hub> hub_;
  Sink* const sink_;
  std::vector<std::unique_ptr<Link>> links_;
  std::set<std::size_t> refused_;
};

class FabricLinks : public ::testing::Test, protected FabricRanks {
 protected:
  // Ranks are linked to the next and the previous one at the beginning.
  void Make(int size, FabricOptions options = {}) {
    hub_ = std::make_shared<Hub>(size);
    FabricRanks::Make(size, options, [&](Fabric* fabric, auto later) {
      const int r = fabric->rank();
      std::vector<std::unique_ptr<Link>> now(later.size());
      for (const int near : {(r + 1) % size, (r + size - 1) % size}) {
        if (now[near] == nullptr) now[near] = std::move(later[near]);
      }
      auto source =
          std::make_unique<HubSource>(r, hub_, fabric, std::move(later));
      sources_.push_back(source.get());
      fabric->Connect(std::move(now), std::move(source));
    });
  }
  void TickAll() {
    for (auto& fabric : fabrics) {
      if (fabric != nullptr) fabric->Tick(true);
    }
  }
  // The rank says good-bye, and is gone.
  void Leave(int rank) {
    at(rank).Leave(milliseconds(0));
    PollAll();
    fabrics[static_cast<std::size_t>(rank)].reset();
    hub_->gone[static_cast<std::size_t>(rank)] = true;
    PollAll();
  }
  std::shared_ptr<Hub> hub_;
  std::vector<HubSource*> sources_;
};

TEST_F(FabricLinks, KeepsMessagesInOrderUntilTheLinkIsThere) {
  Make(5);
  hub_->open = false;
  constexpr int kMessages = 7;
  std::vector<std::string> out;
  std::vector<std::string> in(kMessages, std::string(3, '?'));
  std::vector<TransferEnding> sent(kMessages);
  std::vector<TransferEnding> received(kMessages);
  // All have one name, so only their order tells them apart.
  const Tag tag = PointToPointTag(kNumberedTags, 0);
  for (int i = 0; i < kMessages; ++i) out.push_back(std::string(3, 'a' + i));
  for (int i = 0; i < kMessages; ++i) {
    at(0).Send(2, tag, View(out[i]), {}, sent[i].done());
  }
  EXPECT_EQ(sources_[0]->dials, 1);
  PollAll();
  EXPECT_EQ(at(0).link(2), nullptr);
  EXPECT_EQ(at(0).AwaitedPeers(), std::vector<int>{2});
  EXPECT_EQ(sent[0].times, 0);
  hub_->open = true;
  PollAll();
  ASSERT_NE(at(0).link(2), nullptr);
  for (int i = 0; i < kMessages; ++i) {
    at(2).Recv(0, tag, Room(&in[i]), 0, received[i].done());
  }
  PollAll();
  EXPECT_EQ(in, out);
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(sent[i].times, 1);
    EXPECT_EQ(received[i].times, 1);
  }
  EXPECT_EQ(sources_[2]->dials, 0) << "the link came from the other side";
}

TEST_F(FabricLinks, AReceiveAsksForTheLinkAtTheNextTick) {
  Make(5);
  std::string in(2, '?');
  const std::string out = "ok";
  TransferEnding sent, received;
  at(3).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  PollAll();
  EXPECT_EQ(at(3).link(0), nullptr) << "the sender may ask first";
  TickAll();
  PollAll();
  EXPECT_NE(at(3).link(0), nullptr);
  at(0).Send(3, CallTag(0, 1), View(out), {}, sent.done());
  PollAll();
  EXPECT_EQ(in, out);
  EXPECT_EQ(sources_[0]->dials, 0);
  EXPECT_EQ(sources_[3]->dials, 1);
}

TEST_F(FabricLinks, ANumberIsToldWhenSomebodyNeedsTheLink) {
  Make(5);
  const MessageId id(PointToPointTag(0, 0), 7);
  at(0).Tell(2, id, 99);
  PollAll();
  TickAll();
  PollAll();
  EXPECT_EQ(at(0).link(2), nullptr);
  std::string in(1, '?');
  TransferEnding received;
  at(2).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  TickAll();
  PollAll();
  EXPECT_EQ(at(2).Told(0, id), 99U);
  fabrics.clear();  // Ends the receive.
  EXPECT_EQ(received.times, 1);
}

TEST_F(FabricLinks, ManyUntoldNumbersAreForgottenFromTheOldestOn) {
  Make(5);
  for (std::uint32_t group = 1; group <= 1500; ++group) {
    at(0).Tell(2, {PointToPointTag(0, 0), group}, group);
  }
  at(0).AskForLink(2);
  PollAll();
  EXPECT_FALSE(at(2).Told(0, {PointToPointTag(0, 0), 1}).has_value());
  EXPECT_EQ(at(2).Told(0, {PointToPointTag(0, 0), 1500}), 1500U);
}

TEST_F(FabricLinks, TheVerdictReachesRanksThatAreNotLinkedToTheDead) {
  Make(8);
  std::string in(1, '?');
  std::vector<TransferEnding> received(8);
  at(4).Recv(3, CallTag(0, 1), Room(&in), 0, received[4].done());
  fabrics[0].reset();  // Dies without a word.
  for (int i = 0; i < 10; ++i) {
    PollAll(20);
    clock.Advance(milliseconds(50));
  }
  PollAll(20);
  for (int r = 1; r < 8; ++r) {
    EXPECT_EQ(at(r).status().code(), StatusCode::kUnavailable);
    EXPECT_NE(at(r).status().message().find("rank 0"), std::string::npos)
        << at(r).status().message();
  }
  EXPECT_EQ(received[4].times, 1);
}

TEST_F(FabricLinks, APeerThatDoesNotAnswerIsNamedAfterTheTimeOut) {
  FabricOptions options;
  options.heartbeat_timeout = seconds(10);
  Make(5, options);
  hub_->open = false;
  std::string in(1, '?');
  TransferEnding received;
  at(2).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  int ticks = 0;
  for (; at(2).status().ok() && ticks < 300; ++ticks) {
    clock.Advance(milliseconds(100));
    TickAll();
    PollAll(2);
  }
  EXPECT_GT(ticks, 99);
  EXPECT_LT(ticks, 110);
  PollAll();
  EXPECT_EQ(received.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(received.status.message().find("rank 0 (address 0)"),
            std::string::npos)
      << received.status.message();
  EXPECT_NE(received.status.message().find("no answer"), std::string::npos);
  EXPECT_EQ(received.times, 1);
}

TEST_F(FabricLinks, HeartbeatsKeepAlateLinkAlive) {
  FabricOptions options;
  options.heartbeat_timeout = seconds(10);
  Make(5, options);
  std::string in(1, '?');
  TransferEnding received;
  at(2).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  for (int i = 0; i < 300; ++i) {
    clock.Advance(milliseconds(100));
    TickAll();
    PollAll(2);
  }
  EXPECT_TRUE(at(2).status().ok()) << at(2).status().message();
  fabrics.clear();  // Ends the receive.
  EXPECT_EQ(received.times, 1);
}

TEST_F(FabricLinks, WhoNeedsARankThatHasLeftHearsSo) {
  Make(5);
  Leave(0);
  for (int r = 1; r < 5; ++r) EXPECT_TRUE(at(r).status().ok());
  EXPECT_EQ(at(2).departed(), 0) << "no one brings the news";
  const std::string out = "late";
  TransferEnding sent;
  at(2).Send(0, CallTag(0, 1), View(out), {}, sent.done());
  PollAll();
  EXPECT_EQ(at(2).departed(), 1);
  EXPECT_TRUE(at(2).status().ok()) << "a death would be known in a moment";
  clock.Advance(seconds(1));
  PollAll();
  EXPECT_EQ(sent.times, 1);
  EXPECT_EQ(sent.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(sent.status.message().find("rank 0 (address 0) has left the job"),
            std::string::npos)
      << sent.status.message();
}

// It was too busy to accept, for example, and then connects itself.
TEST_F(FabricLinks, WhatIsSentToARankThatRefusedArrivesIfItTurnsUp) {
  Make(5);
  hub_->gone[0] = true;
  std::vector<std::string> out = {"before", "after!"};
  std::vector<TransferEnding> sent(2);
  at(2).Send(0, CallTag(0, 1), View(out[0]), {}, sent[0].done());
  PollAll();
  EXPECT_TRUE(at(2).HasDeparted(0));
  at(2).Send(0, CallTag(0, 2), View(out[1]), {}, sent[1].done());
  PollAll();
  hub_->gone[0] = false;
  PollAll();
  std::vector<std::string> in(2, std::string(6, '?'));
  std::vector<TransferEnding> received(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    at(0).Recv(2, CallTag(0, i + 1), Room(&in[i]), 0, received[i].done());
  }
  PollAll();
  clock.Advance(seconds(2));
  PollAll();
  EXPECT_EQ(in, out);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(sent[i].times, 1) << i;
    EXPECT_TRUE(sent[i].status.ok()) << sent[i].status.message();
    EXPECT_EQ(received[i].times, 1) << i;
  }
}

TEST_F(FabricLinks, ALookForARankThatHasLeftIsNoError) {
  Make(5);
  Leave(0);
  at(2).AskForLink(0);
  PollAll();
  clock.Advance(seconds(1));
  PollAll();
  EXPECT_TRUE(at(2).HasDeparted(0));
  EXPECT_TRUE(at(2).status().ok()) << at(2).status().message();
}

TEST_F(FabricLinks, LeavingWaitsForNoRankThatWasNeverLinked) {
  Make(5);
  // Neighbours say good-bye in turn; the others are not even driven.
  at(0).Leave(milliseconds(0));
  for (int i = 0; i < 50; ++i) {
    at(1).Poll();
    at(4).Poll();
  }
  const Clock::Time before = clock.Now();
  at(0).Leave(seconds(100));
  EXPECT_EQ(clock.Now(), before);
  EXPECT_TRUE(at(0).status().ok());
}

TEST_F(FabricLinks, WithoutASourceAMissingLinkIsAnError) {
  Fabric alone(0, 2, clock, Poller::Create().value(), {});
  alone.Connect(std::vector<std::unique_ptr<Link>>(2));
  const std::string out = "x";
  TransferEnding sent;
  alone.Send(1, CallTag(0, 1), View(out), {}, sent.done());
  EXPECT_EQ(sent.times, 0) << "inside the call";
  alone.Poll();
  EXPECT_EQ(sent.times, 1);
  EXPECT_EQ(sent.status.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace gradientflow
