#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "tests/rdma/rdma_ranks.h"
#include "transports/remote_places.h"
#include "transports/tcp/create.h"

// Ranks that are linked by several ports each: messages and placed data go by
// all of them, a port that does not work is left out from the start, and one
// that fails later ends the link and is named. The fake devices refuse a key of
// another port.
namespace gradientflow::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kLanesEach = 8;  // Of each rail, besides lane 0.

class RdmaRails : public ::testing::TestWithParam<int> {
 protected:
  RdmaRails() : ranks(2, {}, GetParam()) {
    ranks.options.placed_slot_bytes = 262144;
    ranks.options.placed_notices = 64;
  }
  int rails() const { return GetParam(); }
  // Device i of rank r.
  static std::string Device(int r, int i) {
    return "fake" + std::to_string(r + 10 * i);
  }
  void Connect(bool or_leave = false) {
    ASSERT_TRUE(ranks.Open());
    ranks.Connect(or_leave);
  }
  RemotePlaces& places(int r) { return *ranks[r].endpoint->places(); }

  RdmaRanks ranks;
};

TEST_P(RdmaRails, EachHasLanesWhichCarryMessages) {
  Connect();
  const int lanes = ranks[0].owner.to(1).lanes();
  ASSERT_EQ(lanes, 1 + kLanesEach * rails());
  for (int lane = 0; lane < lanes; ++lane) {
    auto tag = static_cast<std::uint64_t>(10 * lane);
    for (const std::size_t bytes : {0U, 100U, 5000U, 600'000U}) {
      for (const int from : {0, 1}) {
        ranks[from].owner.Send(1 - from, tag, bytes, lane);
      }
      ++tag;
    }
  }
  const auto count = static_cast<std::size_t>(4 * lanes);
  EXPECT_TRUE(ranks.Drive([&] {
    return ranks[0].owner.received.size() == count &&
           ranks[1].owner.received.size() == count &&
           ranks[0].owner.sent.size() == count &&
           ranks[0].owner.to(1).queued_messages() == 0 &&
           ranks[1].owner.to(0).queued_messages() == 0;
  })) << "all messages come, and none stays queued";
  for (const int r : {0, 1}) {
    std::vector<std::uint64_t> last(static_cast<std::size_t>(lanes));
    for (const Received& message : ranks[r].owner.received) {
      EXPECT_TRUE(Intact(message));
      std::uint64_t& before = last[static_cast<std::size_t>(message.lane)];
      EXPECT_EQ(message.header.tag / 10,
                static_cast<std::uint64_t>(message.lane));
      EXPECT_GE(message.header.tag, before) << "a lane keeps its order";
      before = message.header.tag;
    }
    for (int i = 0; i < rails(); ++i) {
      EXPECT_GT(ranks.fake.BytesOf(Device(r, i)), 1'000'000U);
    }
  }
}

TEST_P(RdmaRails, MessagesAreDividedAmongThem) {
  Connect();
  Link& link = ranks[0].owner.to(1);
  std::vector<int> of_rail(static_cast<std::size_t>(rails()));
  for (std::uint64_t i = 0; i < 24; ++i) {
    const int lane = link.DataLane(i);
    ASSERT_TRUE(lane > 0 && lane < link.lanes());
    ++of_rail[static_cast<std::size_t>((lane - 1) / kLanesEach)];
    ranks[0].owner.Send(1, i, 100'000, lane);
  }
  for (const int messages : of_rail) EXPECT_EQ(messages, 24 / rails());
  EXPECT_TRUE(
      ranks.Drive([&] { return ranks[1].owner.received.size() == 24; }));
}

struct Notices final : RemotePlaces::Sink {
  void OnNotice(int peer, std::uint32_t notice) override {
    EXPECT_EQ(peer, 0);
    seen.push_back(notice);
  }
  std::vector<std::uint32_t> seen;
};
void Count(void* self, std::uint64_t, std::uint32_t, const Status& status) {
  EXPECT_TRUE(status.ok());
  ++*static_cast<int*>(self);
}

TEST_P(RdmaRails, PlacedMessagesTakeAllOfThem) {
  Connect();
  Notices notices;
  places(1).SetSink(&notices);
  const auto there = places(1).Allocate(48 * 10'000);
  ASSERT_TRUE(there.ok());
  const RemotePlace name = places(1).NameOf(there.value().data);
  const BufferView here = places(0).slots();
  for (std::size_t i = 0; i < 40'000; ++i) {
    here.data[i] = static_cast<std::byte>(i % 251);
  }
  int done = 0;
  // Every other one goes to the peer's slots, whose place is told at set-up.
  for (std::uint32_t i = 0; i < 48; ++i) {
    const ConstBufferView piece = {here.data + 300 * i, 10'000, {}};
    const RemotePlace to = i % 2 == 0
                               ? name.At(10'000 * i)
                               : places(0).SlotsOf(1).At(5'000 * (i - 1));
    places(0).Put(1, {&piece, 1}, to, i, {&Count, &done, 0});
  }
  EXPECT_TRUE(
      ranks.Drive([&] { return notices.seen.size() == 48 && done == 48; }));
  std::sort(notices.seen.begin(), notices.seen.end());
  for (std::uint32_t i = 0; i < 48; ++i) {
    EXPECT_EQ(notices.seen[i], i) << "each once";
    if (i % 2 == 1) continue;
    EXPECT_TRUE(std::equal(here.data + 300 * i, here.data + 300 * i + 10'000,
                           there.value().data + 10'000 * i));
  }
  for (int i = 0; i < rails(); ++i) {
    const auto bytes = ranks.fake.BytesOf(Device(0, i));
    EXPECT_GE(bytes, 480'000U / static_cast<unsigned>(rails()) - 10'000U);
  }
  const RemoteWrites written = ranks[0].endpoint->writes()->Count();
  EXPECT_EQ(written.data, 48U);
  EXPECT_EQ(written.bytes, 480'000U);
  places(1).SetSink(nullptr);
  places(1).Free(there.value());
}

// The peer has all that was sent before it, by whichever rail.
TEST_P(RdmaRails, AGoodByeComesLast) {
  Connect();
  for (int lane = 1; lane < ranks[0].owner.to(1).lanes(); ++lane) {
    ranks[0].owner.Send(1, static_cast<std::uint64_t>(lane), 300'000, lane);
  }
  ranks[0].owner.Send(1, 0, 0, 0, MessageKind::kBye);
  EXPECT_GT(ranks[0].owner.to(1).queued_messages(), 8U);
  const auto count = static_cast<std::size_t>(ranks[0].owner.to(1).lanes());
  EXPECT_TRUE(
      ranks.Drive([&] { return ranks[1].owner.received.size() == count; }));
  ASSERT_FALSE(ranks[1].owner.received.empty());
  EXPECT_EQ(ranks[1].owner.received.back().header.kind, MessageKind::kBye);
}

TEST_P(RdmaRails, OneThatReachesNobodyIsLeftOut) {
  const int cut = rails() - 1;
  ranks.fake.SetCable(Device(0, cut), Device(1, cut), false);
  Connect();
  for (const int r : {0, 1}) {
    ASSERT_TRUE(ranks[r].connected.ok()) << ranks[r].connected.ToString();
    EXPECT_EQ(ranks[r].owner.to(1 - r).lanes(), 1 + kLanesEach * cut);
    for (const std::string& part :
         {"without " + Device(r, cut) + ":1 to rank " + std::to_string(1 - r),
          std::string("nothing got through by RDMA")}) {
      EXPECT_THAT(ranks[r].endpoint->Choices(), HasSubstr(part));
    }
  }
  ranks.ExpectTraffic(30, 1);
}

TEST_P(RdmaRails, WithoutTheFirstThePairIsNotLinked) {
  ranks.fake.SetCable(Device(0, 0), Device(1, 0), false);
  Connect(true);
  for (const int r : {0, 1}) {
    const auto peer = static_cast<std::size_t>(1 - r);
    EXPECT_FALSE(ranks[r].linked[peer]);
    EXPECT_THAT(ranks[r].unlinked[peer].message(),
                HasSubstr("nothing got through by RDMA"));
  }
}

// Each of them in turn: both ranks end with an error that names it, whatever is
// under way on the others, and nothing is left of their objects.
TEST_P(RdmaRails, OneThatFailsEndsTheLinkAndIsNamed) {
  for (int fails = 0; fails < rails(); ++fails) {
    SCOPED_TRACE(fails);
    RdmaRanks job(2, {}, rails());
    ASSERT_TRUE(job.Open());
    job.Connect(false);
    Link& link = job[0].owner.to(1);
    for (int lane = 1; lane < link.lanes(); ++lane) {
      job[0].owner.Send(1, static_cast<std::uint64_t>(lane), 3'000'000, lane);
    }
    for (int i = 0; i < 5; ++i) job[0].owner.PollOnce();
    job.fake.SetPort(Device(0, fails), 1, false);
    EXPECT_TRUE(job.Drive([&] {
      return !job[0].owner.down.empty() && !job[1].owner.down.empty();
    }));
    ASSERT_EQ(job[0].owner.down.size(), 1U);
    EXPECT_THAT(job[0].owner.down[0].second.message(),
                HasSubstr(Device(0, fails) + ":1"));
    job[0].owner.Send(1, 99, 10, 1);
    EXPECT_TRUE(job.Drive([&] {
      return job[0].owner.sent.size() ==
             static_cast<std::size_t>(1 + kLanesEach * rails());
    })) << "every message ends";
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_FALSE(job[0].owner.sent.back().second.ok());
    }
  }
}

// Stands still until something has happened, and then is `by` later.
class LateClock final : public Clock {
 public:
  LateClock(std::function<bool()> happened, Time by)
      : happened_(std::move(happened)), by_(by) {}
  Time Now() const override {
    return happened_() ? std::chrono::seconds(1000) + by_
                       : std::chrono::seconds(1000);
  }

 private:
  const std::function<bool()> happened_;
  const Time by_;
};

// Rank 0 has no time left when all its probes are through but the one by a port
// that reaches nobody, and rank 1 would wait on.
TEST_P(RdmaRails, ADeadlineOfOneRankCountsForBoth) {
  const std::string cut = Device(0, rails() - 1);
  ranks.fake.SetCable(cut, Device(1, rails() - 1), false);
  const auto through = static_cast<std::uint64_t>(2 * (rails() - 1));
  const LateClock clock(
      [&] {
        return ranks.fake.BytesOf(cut) > 0 &&
               ranks.fake.stats(0).completions >= through;
      },
      std::chrono::milliseconds(1500));
  ranks[0].clock = &clock;
  ranks[0].patience = std::chrono::seconds(1);
  Connect();
  for (const int r : {0, 1}) {
    ASSERT_TRUE(ranks[r].connected.ok()) << ranks[r].connected.ToString();
    EXPECT_EQ(ranks[r].owner.to(1 - r).lanes(), 1 + kLanesEach * (rails() - 1));
    EXPECT_THAT(ranks[r].endpoint->Choices(),
                HasSubstr("rank 0 waited for rank 1 to set up RDMA, in vain"));
  }
  ranks.ExpectTraffic(30, 1);
}

INSTANTIATE_TEST_SUITE_P(Of, RdmaRails, ::testing::Values(2, 3, 4));

// Rank 1 is linked by TCP and then says nothing. It may think that the link
// works, so rank 0 cannot go on without it either.
TEST(RdmaRailsOfASilentRank, EndTheJob) {
  RdmaRanks ranks(2);
  ASSERT_TRUE(ranks.Open());
  TransportOptions silent = ranks.options;
  silent.rank = 1;
  silent.connections = 0;
  ranks[1].endpoint = kTcpTransport.open(silent).value();
  const LateClock clock([&] { return ranks.fake.stats(0).receives > 0; },
                        std::chrono::seconds(60));
  ranks[0].clock = &clock;
  ranks.Connect(true);
  EXPECT_EQ(ranks[0].connected.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(ranks[0].connected.message(),
              HasSubstr("rank 0 waited for rank 1 to say whether RDMA works"));
  EXPECT_FALSE(ranks[0].linked[1]);
}

// Two ranks use as many as both have.
TEST(RdmaRailsOfUnequalRanks, UseWhatBothHave) {
  RdmaRanks ranks(3, {}, 2);
  ASSERT_TRUE(ranks.Open());
  TransportOptions own = ranks.options;
  own.rank = 1;
  own.ranks = 3;
  own.own["rdma_devices"] = "=fake1";
  ranks[1].endpoint = OpenRdma(own, ranks.fake.api(1)).value();
  ranks.Connect(false);
  EXPECT_EQ(ranks[0].owner.to(1).lanes(), 1 + kLanesEach);
  EXPECT_EQ(ranks[1].owner.to(2).lanes(), 1 + kLanesEach);
  EXPECT_EQ(ranks[0].owner.to(2).lanes(), 1 + 2 * kLanesEach);
  ranks.ExpectTraffic(30, 5);
}

// The n-th call of rank 1's devices fails: a port that does not open is left
// out, and whatever happens both ranks of a pair agree.
TEST(RdmaRailsThatCannotBeMade, HarmNoOneElse) {
  for (const char* call : {"open_device", "reg_mr", "create_cq", "create_qp",
                           "modify_qp", "post_recv", "post_send"}) {
    for (int n = 1; n < 60; ++n) {
      SCOPED_TRACE(std::string(call) + " " + std::to_string(n));
      RdmaRanks ranks(3, {}, 2);
      ranks.options.placed_slot_bytes = 8192;
      ranks.options.placed_notices = 4;
      ranks.fake.FailCall(1, call, n, 12);
      const bool opened = ranks.Open();
      ranks.Connect(true);
      const bool spared = ranks.fake.ForgetFaults(1);
      EXPECT_TRUE(ranks[0].linked[2]);
      for (const std::size_t p : {0U, 2U}) {
        if (!opened) continue;
        EXPECT_EQ(ranks[1].linked[p], ranks[static_cast<int>(p)].linked[1]);
        EXPECT_TRUE(!ranks[1].linked[p] ||
                    ranks[1].owner.to(static_cast<int>(p)).lanes() ==
                        ranks[static_cast<int>(p)].owner.to(1).lanes());
      }
      ranks.ExpectTraffic(5, static_cast<std::uint64_t>(n));
      if (spared) break;
    }
  }
}

// The second port of rank 1 cannot register the slots.
TEST(RdmaRailsThatCannotBeMade, OneWithoutSlotsIsLeftOut) {
  RdmaRanks ranks(2, {}, 2);
  ranks.options.placed_slot_bytes = 8192;
  ranks.options.placed_notices = 4;
  ranks.fake.FailCall(1, "reg_mr", 2, 12);
  ASSERT_TRUE(ranks.Open());
  const std::string choices = ranks[1].endpoint->Choices();
  EXPECT_NE(choices.find("without fake"), std::string::npos) << choices;
  ranks.Connect(false);
  EXPECT_EQ(ranks[0].owner.to(1).lanes(), 1 + kLanesEach);
  EXPECT_EQ(ranks[1].owner.to(0).lanes(), 1 + kLanesEach);
  ranks.ExpectTraffic(20, 3);
}

}  // namespace
}  // namespace gradientflow::testing
