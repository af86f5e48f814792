#include "transports/fabric.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "tests/base/heap_count.h"
#include "tests/transports/fabric_ranks.h"
#include "transports/link.h"
#include "transports/poller.h"

// The fabrics of two or three ranks, driven in turn on one thread.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FabricRanks;
using testing::HeapAllocations;
using testing::Room;
using testing::TransferEnding;
using testing::View;

class FabricTest : public ::testing::Test, protected FabricRanks {};

TEST_F(FabricTest, MatchesMessagesToReceivesInEitherOrder) {
  Make(2);
  const std::string a = "first";
  const std::string b = "second";
  std::string got_a(a.size(), '?');
  std::string got_b(b.size(), '?');
  TransferEnding sent_a;
  TransferEnding sent_b;
  TransferEnding received_a;
  TransferEnding received_b;
  at(0).Send(1, CallTag(0, 1), View(a), {0, kFlagNonfinite}, sent_a.done());
  PollAll();
  EXPECT_EQ(received_a.times, 0);
  at(1).Recv(0, CallTag(0, 2), Room(&got_b), 0, received_b.done());
  at(1).Recv(0, CallTag(0, 1), Room(&got_a), 0, received_a.done());
  EXPECT_EQ(received_a.times, 0) << "inside the call";
  at(0).Send(1, CallTag(0, 2), View(b), {}, sent_b.done());
  PollAll();
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_b, b);
  EXPECT_EQ(received_a.flags & kFlagNonfinite, kFlagNonfinite);
  for (const TransferEnding* ending :
       {&sent_a, &sent_b, &received_a, &received_b}) {
    EXPECT_EQ(ending->times, 1);
    EXPECT_TRUE(ending->status.ok());
  }
}

TEST_F(FabricTest, MessagesAllocateNothingOnceOneHasPassed) {
  Make(2);
  const std::string out = "there and back";
  std::string in(out.size(), '?');
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    if (i == 100) before = HeapAllocations();
    const int from = static_cast<int>(i % 2);
    TransferEnding sent;
    TransferEnding received;
    at(1 - from).Recv(from, CallTag(0, i), Room(&in), 0, received.done());
    at(from).Send(1 - from, CallTag(0, i), View(out), {}, sent.done());
    PollAll(5);
    ASSERT_EQ(sent.times, 1);
    ASSERT_EQ(received.times, 1);
  }
  EXPECT_EQ(HeapAllocations(), before);
}

// Counts how often all of its lanes had to be watched.
class WatchedLink final : public Link {
 public:
  const char* kind() const override { return "watched"; }
  const char* address() const override { return "here"; }
  int lanes() const override { return 2; }
  void Send(int, const OutMessage&) override {}
  bool Poll() override { return false; }
  void Resume(int) override {}
  bool WatchAll() override { return ++watched > 0; }
  bool PrepareToSleep() override { return true; }
  void WakeUp() override {}
  std::size_t queued_messages() const override { return 0; }
  void Close() override {}

  int watched = 0;
};

// A rank that is parked only ticks, and learns of deaths from the Poller.
TEST(FabricTick, HasThePollerWatchAllLanes) {
  const ManualClock clock;
  Fabric fabric(0, 2, clock, Poller::Create().value(), {});
  std::vector<std::unique_ptr<Link>> links(2);
  auto link = std::make_unique<WatchedLink>();
  const WatchedLink& to = *link;
  links[1] = std::move(link);
  fabric.Connect(std::move(links));
  for (int i = 1; i <= 3; ++i) {
    fabric.Tick(/*waiting=*/false);
    EXPECT_EQ(to.watched, i);
  }
}

// Messages that nobody receives fill the way to the rank. This must not hide
// whether the rank lives.
class Flood : public FabricTest {
 protected:
  Flood() {
    FabricOptions options;
    options.early_bytes = 8000;
    options.heartbeat_timeout = seconds(2);
    Make(2, options);
    for (int i = 0; i < kMessages; ++i) {
      at(0).Send(1, kPointToPointBit | static_cast<Tag>(i), View(out_), {},
                 sent_[i].done());
    }
    PollAll(2);
    at(1).Recv(0, kPointToPointBit | kMessages, Room(&in_), 0,
               received_.done());
  }
  ~Flood() override { fabrics.clear(); }

  static constexpr int kMessages = 3000;  // Far more than the FIFO holds.
  const std::string out_ = std::string(700, 'x');
  std::string in_ = std::string(700, '?');
  std::vector<TransferEnding> sent_ = std::vector<TransferEnding>(kMessages);
  TransferEnding received_;
};

TEST_F(Flood, DoesNotHideADeath) {
  fabrics[0].reset();  // Without a good-bye.
  PollAll();
  clock.Advance(seconds(1));
  PollAll();
  EXPECT_EQ(at(1).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(received_.times, 1);
}

TEST_F(Flood, DoesNotHideAStop) {
  for (int i = 0; i < 23 && at(1).status().ok(); ++i) {
    clock.Advance(milliseconds(100));
    at(1).Tick(/*waiting=*/true);
    at(1).Poll();
  }
  EXPECT_EQ(received_.times, 1);
  EXPECT_EQ(received_.status.code(), StatusCode::kDeadlineExceeded);
  const std::string& said = received_.status.message();
  EXPECT_NE(said.find("rank 0"), std::string::npos) << said;
}

TEST_F(Flood, DoesNotMakeALivePeerSilent) {
  for (int i = 0; i < 300; ++i) {
    clock.Advance(milliseconds(100));
    at(0).Tick(/*waiting=*/true);
    at(1).Tick(/*waiting=*/true);
    PollAll(2);
  }
  EXPECT_TRUE(at(1).status().ok()) << at(1).status().message();
  EXPECT_TRUE(at(0).status().ok()) << at(0).status().message();
  EXPECT_EQ(at(0).AwaitedPeers(), std::vector<int>{1}) << "by its sends";
}

TEST_F(FabricTest, EndsTheJobOnAllRanksWhenCallsDiffer) {
  for (const bool early : {false, true}) {
    fabrics.clear();
    Make(3);
    const std::string out = "1234";
    std::string in(4, '?');
    TransferEnding sent;
    TransferEnding received;
    if (early) {
      at(0).Send(1, CallTag(0, 1), View(out), {0x10000}, sent.done());
      PollAll();
    }
    at(1).Recv(0, CallTag(0, 1), Room(&in), 0x20000, received.done());
    if (!early) {
      at(0).Send(1, CallTag(0, 1), View(out), {0x10000}, sent.done());
    }
    PollAll();
    EXPECT_EQ(received.times, 1);
    EXPECT_EQ(received.status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(received.status.message().find("rank 0"), std::string::npos);
    EXPECT_EQ(in, "????");
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(at(rank).status().message(), received.status.message());
    }
  }
}

TEST_F(FabricTest, EndsTheJobOnAMessageOfACallThatWasNotMade) {
  for (const bool early : {false, true}) {
    fabrics.clear();
    Make(2);
    const std::string out = "1234";
    TransferEnding sent;
    if (!early) at(1).CallDone(0, 1, 7);
    at(0).Send(1, CallTag(0, 7), View(out), {}, sent.done());
    PollAll();
    EXPECT_TRUE(at(1).status().ok()) << "another series, or yet to come";
    at(0).Send(1, CallTag(1, 7), View(out), {}, sent.done());
    if (early) PollAll();
    if (early) at(1).CallDone(0, 1, 7);
    PollAll();
    EXPECT_EQ(at(1).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(at(0).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(FabricTest, KeepsGroupsApart) {
  Make(2);
  const std::string out[] = {"of all", "of 1st", "of 2nd"};
  std::string in[3];
  TransferEnding sent;
  TransferEnding received[3];
  const Tag tag = CallTag(0, 3);
  for (const GroupId group : {2U, 0U, 1U}) {
    at(0).Send(1, {tag, group}, View(out[group]), {}, sent.done());
  }
  // Calls of one group say nothing about those of another.
  at(1).CallDone(1, 0, 2);
  PollAll();
  for (const GroupId group : {0U, 1U, 2U}) {
    EXPECT_TRUE(at(1).HasMessage(0, {tag, group}));
    EXPECT_FALSE(at(1).HasMessage(0, {tag + 1, group}));
    in[group].resize(6);
    at(1).Recv(0, {tag, group}, Room(&in[group]), 0, received[group].done());
    EXPECT_FALSE(at(1).HasMessage(0, {tag, group}));
  }
  PollAll();
  for (const GroupId group : {0U, 1U, 2U}) {
    EXPECT_EQ(received[group].times, 1);
    EXPECT_EQ(in[group], out[group]);
  }
  at(1).CallDone(1, 0, 3);
  at(0).Send(1, {tag, 2}, View(out[2]), {}, sent.done());
  PollAll();
  EXPECT_TRUE(at(1).status().ok()) << "group 2 has made no calls yet";
  at(0).Send(1, {tag, 1}, View(out[1]), {}, sent.done());
  PollAll();
  EXPECT_NE(at(1).status().message().find("in group 1"), std::string::npos);
}

TEST_F(FabricTest, DropsWhatCameForAGroupThatIsClosed) {
  Make(2);
  const std::string out(90, 'x');
  std::string in(90, '?');
  TransferEnding sent;
  TransferEnding received;
  at(0).Send(1, {kPointToPointBit | 1, 7}, View(out), {}, sent.done());
  at(0).Send(1, {kPointToPointBit | 2, 8}, View(out), {}, sent.done());
  PollAll();
  EXPECT_TRUE(at(1).HasMessage(0, {kPointToPointBit | 1, 7}));
  EXPECT_EQ(at(1).held_bytes(0), 180U);
  at(1).CloseGroup(7);
  EXPECT_FALSE(at(1).HasMessage(0, {kPointToPointBit | 1, 7}));
  EXPECT_EQ(at(1).held_bytes(0), 90U);
  at(1).Recv(0, {kPointToPointBit | 2, 8}, Room(&in), 0, received.done());
  PollAll();
  EXPECT_EQ(received.times, 1);
  EXPECT_EQ(in, out);
}

TEST_F(FabricTest, FailsOnlyTheReceiveOfAMessageOfAnotherLength) {
  Make(2);
  const Tag tag = kPointToPointBit | 5;
  const std::string out = "12345";
  std::string in(4, '?');
  TransferEnding sent;
  TransferEnding received;
  at(0).Send(1, tag, View(out), {}, sent.done());
  at(1).Recv(0, tag, Room(&in), 0, received.done());
  PollAll();
  EXPECT_EQ(received.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(in, "????");
  EXPECT_TRUE(sent.status.ok());
  EXPECT_TRUE(at(1).status().ok());
}

TEST_F(FabricTest, RunsEveryDoneOnceWhenItFails) {
  Make(2);
  std::string in(4, '?');
  TransferEnding before;
  TransferEnding after;
  at(1).Recv(0, CallTag(0, 1), Room(&in), 0, before.done());
  at(0).Fail(Status(StatusCode::kAborted, "no more"));
  PollAll();
  at(1).Recv(0, CallTag(0, 2), Room(&in), 0, after.done());
  PollAll();
  for (const TransferEnding* ending : {&before, &after}) {
    EXPECT_EQ(ending->times, 1);
    EXPECT_EQ(ending->status.code(), StatusCode::kAborted);
    EXPECT_EQ(ending->status.message(), "no more");
  }
}

TEST_F(FabricTest, BlamesThePeerThatIsSilentWhileItIsNeeded) {
  FabricOptions options;
  options.heartbeat_timeout = seconds(10);
  Make(2, options);
  for (int i = 0; i < 300; ++i) {
    clock.Advance(milliseconds(100));
    at(0).Tick(/*waiting=*/false);
  }
  EXPECT_TRUE(at(0).status().ok()) << "nobody waits";
  for (int i = 0; i < 300 && at(0).status().ok(); ++i) {
    clock.Advance(milliseconds(100));
    at(0).Tick(/*waiting=*/true);
  }
  EXPECT_EQ(at(0).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(at(0).status().message().find("rank 1"), std::string::npos);
}

TEST_F(FabricTest, HeartbeatsKeepASlowPeerAlive) {
  FabricOptions options;
  options.heartbeat_timeout = seconds(10);
  Make(2, options);
  for (int i = 0; i < 600; ++i) {
    clock.Advance(milliseconds(100));
    at(0).Tick(/*waiting=*/true);
    at(1).Tick(/*waiting=*/false);
    PollAll(2);
  }
  EXPECT_TRUE(at(0).status().ok()) << at(0).status().message();
}

// Counts how often the poller finds its descriptor, which is always ready.
class Questions final : public Poller::Target {
 public:
  explicit Questions(Poller& poller) : poller_(poller) {
    EXPECT_TRUE(poller_.Add(ready_.get(), EPOLLIN, this, 0).ok());
  }
  ~Questions() override { poller_.Remove(ready_.get()); }
  int count() const { return count_; }

 private:
  bool OnEvents(std::uint64_t, std::uint32_t) override {
    ++count_;
    return false;
  }
  Poller& poller_;
  const Fd ready_{::eventfd(1, EFD_CLOEXEC)};
  int count_ = 0;
};

TEST_F(FabricTest, EveryTickAsksThePoller) {
  Make(2);
  const Questions questions(at(1).poller());
  for (int tick = 1; tick <= 20; ++tick) {
    at(1).Poll();
    at(1).Tick(/*waiting=*/false);
    EXPECT_EQ(questions.count(), tick);
  }
}

// In shared memory nothing but a descriptor tells of a death, and a rank that
// only ticks polls once per tick.
TEST_F(FabricTest, ARankThatSeldomPollsLearnsOfADeathWithinTwoTicks) {
  Make(2);
  fabrics[0].reset();  // Without a good-bye.
  for (int tick = 0; tick < 2; ++tick) {
    at(1).Poll();
    at(1).Tick(/*waiting=*/false);
    clock.Advance(seconds(1));
  }
  at(1).Poll();
  EXPECT_EQ(at(1).status().code(), StatusCode::kUnavailable);
}

TEST_F(FabricTest, TellsANumberThatNobodyHasToWaitFor) {
  Make(3);
  const MessageId id(PointToPointTag(0, 0), 7);
  EXPECT_FALSE(at(1).Told(0, id).has_value());
  at(0).Tell(1, id, 0xFEDCBA9876543210);
  at(2).Tell(1, id, 0);
  PollAll();
  EXPECT_EQ(at(1).Told(0, id), 0xFEDCBA9876543210U);
  EXPECT_EQ(at(1).Told(2, id), 0U);
  EXPECT_FALSE(at(2).Told(1, id).has_value());
  EXPECT_FALSE(at(1).Told(0, MessageId(PointToPointTag(0, 0), 8)).has_value());
  // It outlives its sender, until the group is closed.
  at(1).Tell(0, id, 4);
  at(0).Leave(milliseconds(0));
  at(1).Tell(0, id, 5);
  PollAll();
  fabrics[0].reset();
  PollAll();
  EXPECT_EQ(at(1).Told(0, id), 0xFEDCBA9876543210U);
  at(1).CloseGroup(7);
  EXPECT_FALSE(at(1).Told(0, id).has_value());
  at(1).Tell(0, id, 6);  // To a rank that has left.
  PollAll();
  EXPECT_TRUE(at(1).status().ok()) << at(1).status().ToString();
}

TEST_F(FabricTest, DepartureIsAnErrorOnlyForWhoStillNeedsThePeer) {
  Make(2);
  at(1).SetProgressText("work");
  at(0).Leave(milliseconds(0));
  PollAll();
  fabrics[0].reset();
  PollAll();
  EXPECT_TRUE(at(1).status().ok()) << at(1).status().message();
  std::string in(4, '?');
  TransferEnding received;
  at(1).Recv(0, CallTag(0, 1), Room(&in), 0, received.done());
  PollAll();
  EXPECT_EQ(received.times, 1);
  EXPECT_EQ(received.status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradientflow
