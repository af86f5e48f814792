#include "tests/transports/link_conformance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/wire.h"

namespace gradientflow::testing {
namespace {

// Sizes around those of headers, pieces, FIFOs and socket buffers.
constexpr std::size_t kSizes[] = {
    0,    1,    31,   32,    33,    4095,   4096,   4097, 8151,    8152, 8153,
    8191, 8192, 8193, 16384, 65537, 262144, 262145, 0,    5000000, 7};

// Whether `to` has everything that `from` sent, intact, with each lane in
// order.
void ExpectAllArrived(const LinkOwner& from, const LinkOwner& to,
                      std::size_t count) {
  ASSERT_EQ(to.received.size(), count);
  std::vector<std::uint64_t> next(64, 0);
  for (const Received& message : to.received) {
    EXPECT_TRUE(Intact(message)) << "message " << message.header.tag;
    EXPECT_GE(message.header.tag, next[static_cast<std::size_t>(message.lane)]);
    next[static_cast<std::size_t>(message.lane)] = message.header.tag + 1;
  }
  ASSERT_EQ(from.sent.size(), count);
  for (const auto& [tag, status] : from.sent) {
    EXPECT_TRUE(status.ok()) << tag << " " << status.ToString();
  }
}

}  // namespace

TransportOptions OptionsOfTests() {
  TransportOptions options;
  options.arena_bytes = std::size_t{16} << 20;
  options.fifo_bytes = 8192;
  options.connections = 2;
  options.socket_ifname = "lo";
  options.io_threads = 0;
  return options;
}

void JoinEndpoints(Endpoint* one, Endpoint* other, LinkOwner* a, LinkOwner* b) {
  static const SteadyClock clock;  // Outlives the links.
  const auto connect = [&](int rank, Endpoint* endpoint, LinkOwner* owner) {
    ConnectArgs args;
    args.rank = rank;
    args.size = 2;
    args.addresses = {one->address(), other->address()};
    args.secret = HmacSha256("4711", "");
    args.clock = &clock;
    args.deadline = clock.Now() + std::chrono::seconds(20);
    args.poller = owner->poller();
    args.events = owner;
    auto links = endpoint->Connect(args);
    ASSERT_TRUE(links.ok()) << links.status().ToString();
    owner->Take(std::move(links).value());
  };
  std::thread thread([&] { connect(1, other, b); });
  connect(0, one, a);
  thread.join();
}

void JoinByEndpoints(const TransportKind& kind, LinkOwner* a, LinkOwner* b,
                     int io_threads) {
  TransportOptions options = OptionsOfTests();
  options.io_threads = io_threads;
  const auto one = kind.open(options).value();
  const auto other = kind.open(options).value();
  JoinEndpoints(one.get(), other.get(), a, b);
}

// ---- Frames

TEST_P(LinkConformance, TellsWhatItIs) {
  Join();
  EXPECT_STREQ(a().kind(), GetParam().name);
  EXPECT_NE(std::string(a().address()), "");
  EXPECT_EQ(a().lanes(), b().lanes());
  EXPECT_EQ(a().sockets_carry_data(), b().sockets_carry_data());
}

TEST_P(LinkConformance, CarriesEverySizeBothWaysInOrder) {
  Join();
  std::uint64_t tag = 0;
  for (const std::size_t bytes : kSizes) {
    const int lane = static_cast<int>(tag) % a().lanes();
    a_.Send(1, tag, bytes, lane);
    b_.Send(0, tag, bytes, lane);
    ++tag;
  }
  EXPECT_EQ(a().queued_messages(), tag);
  EXPECT_FALSE(a().PrepareToSleep()) << "there is something to send";
  a().WakeUp();
  EXPECT_TRUE(a_.sent.empty()) << "a completion ran inside Send()";
  ASSERT_TRUE(Drive(
      [&] { return a_.received.size() == tag && b_.received.size() == tag; }));
  ExpectAllArrived(a_, b_, tag);
  ExpectAllArrived(b_, a_, tag);
  // The peer may have it before this side knows.
  EXPECT_TRUE(Drive([&] { return a().queued_messages() == 0; }));
  EXPECT_TRUE(a_.down.empty() && b_.down.empty());
}

TEST_P(LinkConformance, CarriesRandomStreams) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    LinkOwner left;
    LinkOwner right;
    GetParam().join(&left, &right);
    std::mt19937 random(seed);
    const int lanes = left.to(1).lanes();
    constexpr std::size_t kMessages = 600;
    for (std::uint64_t tag = 0; tag < kMessages; ++tag) {
      const int lane =
          static_cast<int>(random() % static_cast<unsigned>(lanes));
      const std::size_t bytes = random() % (std::size_t{1} << (random() % 17));
      left.Send(1, tag, bytes, lane);
      right.Send(0, tag, bytes / 2, lane);
      while (random() % 4 == 0) left.PollOnce();
      while (random() % 4 == 0) right.PollOnce();
    }
    ASSERT_TRUE(testing::Drive({&left, &right}, [&] {
      return left.received.size() == kMessages &&
             right.received.size() == kMessages;
    }));
    ExpectAllArrived(left, right, kMessages);
    ExpectAllArrived(right, left, kMessages);
  }
}

TEST_P(LinkConformance, CarriesManySmallMessagesBothWays) {
  Join();
  constexpr std::size_t kCount = 5000;
  for (std::size_t i = 0; i < kCount; ++i) {
    a_.Send(1, i, i % 67);
    b_.Send(0, i, i % 71);
  }
  ASSERT_TRUE(Drive([&] {
    return a_.received.size() == kCount && b_.received.size() == kCount;
  }));
  ExpectAllArrived(a_, b_, kCount);
  ExpectAllArrived(b_, a_, kCount);
}

TEST_P(LinkConformance, DoesABoundedAmountOfWorkAtATime) {
  Join();
  constexpr std::size_t kCount = 60000;
  b_.keep_payloads = false;
  for (std::size_t i = 0; i < kCount; ++i) a_.Send(1, i, 0);
  std::size_t most = 0;
  ASSERT_TRUE(testing::Drive({&a_}, [&] {
    // Sends as much as there is room for, then receives all of it.
    const std::size_t before = b_.messages;
    b_.PollOnce();
    most = std::max(most, b_.messages - before);
    return b_.messages == kCount;
  }));
  EXPECT_LE(most, kCount / 2);
}

// ---- Back-pressure

TEST_P(LinkConformance, AFullLinkWaitsForRoomAndLetsTheSenderSleep) {
  Join();
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  a_.Send(1, 1, kBytes);
  a_.Send(1, 2, 10);
  while (a_.PollOnce()) {
  }
  // What a card or a thread still does for the link may come between two looks.
  ASSERT_TRUE(testing::Drive({&a_}, [&] {
    if (a().PrepareToSleep()) return true;
    a().WakeUp();
    return false;
  })) << "only room is waited for";
  EXPECT_EQ(a().queued_messages(), 2U);
  // Room in the FIFO wakes up the sender.
  std::atomic<bool> awake{false};
  std::thread reader([&] {
    EXPECT_TRUE(testing::Drive({&b_}, [&] { return awake.load(); }));
  });
  EXPECT_TRUE(a_.poller()->Poll(std::chrono::seconds(9))) << "not woken";
  awake = true;
  reader.join();
  a().WakeUp();
  ASSERT_TRUE(Drive([&] { return b_.received.size() == 2; }));
  ExpectAllArrived(a_, b_, 2);
}

TEST_P(LinkConformance, APausedLaneAsksAgainOnlyAfterResume) {
  Join();
  const int lane = a().lanes() - 1;
  b_.pause = true;
  a_.Send(1, 1, 100, lane);
  a_.Send(1, 2, 100000, lane);
  ASSERT_TRUE(Drive([&] { return b_.headers == 1; }));
  for (int i = 0; i < 100; ++i) {
    a_.PollOnce();
    b_.PollOnce();
  }
  EXPECT_EQ(b_.headers, 1U);
  EXPECT_TRUE(b_.received.empty());
  EXPECT_TRUE(b().PrepareToSleep()) << "a paused lane is idle";
  EXPECT_FALSE(b_.poller()->Poll(std::chrono::milliseconds(1)));
  b().WakeUp();
  b().Resume(lane);  // Still paused: asked once more.
  ASSERT_TRUE(Drive([&] { return b_.headers == 2; }));
  b_.pause = false;
  b().Resume(lane);
  EXPECT_FALSE(b().PrepareToSleep()) << "there is something to do";
  b().WakeUp();
  ASSERT_TRUE(Drive([&] { return b_.received.size() == 2; }));
  ExpectAllArrived(a_, b_, 2);
}

TEST_P(LinkConformance, WhileALaneIsPausedTheOthersOrBeatsGoOn) {
  Join();
  const int lane = a().lanes() - 1;
  b_.pause_if = [&](int of, const Header&) { return of == lane; };
  a_.Send(1, 1, 100, lane);
  ASSERT_TRUE(Drive([&] { return b_.headers == 1; }));
  if (lane > 0) {
    for (std::uint64_t tag = 2; tag < 12; ++tag) a_.Send(1, tag, 100000, 0);
    ASSERT_TRUE(Drive([&] { return b_.received.size() == 10; }));
  } else {
    const std::uint64_t before = b().beats();
    a().Beat();
    EXPECT_GT(b().beats(), before) << "no way for a sign of life";
  }
  EXPECT_TRUE(b_.down.empty());
}

TEST_P(LinkConformance, CallbacksMaySend) {
  Join();
  b_.on_message = [&](const Header& header) {
    b_.Send(0, header.tag, static_cast<std::size_t>(header.payload_bytes));
  };
  for (std::uint64_t tag = 0; tag < 50; ++tag) a_.Send(1, tag, 10007);
  ASSERT_TRUE(Drive([&] { return a_.received.size() == 50; }));
  for (const Received& message : a_.received) EXPECT_TRUE(Intact(message));
}

// ---- Sleeping: a lost wake-up shows as an Await() that fails.

TEST_P(LinkConformance, PingPongLosesNoWakeUp) {
  Join();
  constexpr int kRounds = 2000;
  const auto run = [](LinkOwner* me, int peer) {
    me->keep_payloads = false;
    for (std::size_t i = 0; i < kRounds; ++i) {
      if (peer == 1) me->Send(peer, i, 64);
      ASSERT_TRUE(me->Await([&] { return me->messages > i; })) << i;
      if (peer == 0) me->Send(peer, i, 64);
    }
    ASSERT_TRUE(me->Await([&] { return me->to(peer).queued_messages() == 0; }));
  };
  std::thread other([&] { run(&b_, 0); });
  run(&a_, 1);
  other.join();
}

// Both sides wait for room as often as for data.
TEST_P(LinkConformance, LargeMessagesBothWaysLoseNoWakeUp) {
  Join();
  const auto run = [](LinkOwner* me, int peer) {
    for (std::size_t i = 0; i < 40; ++i) me->Send(peer, i, 200011 + i);
    ASSERT_TRUE(me->Await([&] {
      return me->messages == 40 && me->to(peer).queued_messages() == 0;
    }));
    for (const Received& message : me->received) ASSERT_TRUE(Intact(message));
  };
  std::thread other([&] { run(&b_, 0); });
  run(&a_, 1);
  other.join();
}

// ---- The end

TEST_P(LinkConformance, APeerThatLeavesIsToldOnceAndEndsEverySend) {
  Join();
  a_.Send(1, 7, 10);
  ASSERT_TRUE(Drive([&] { return b_.received.size() == 1; }));
  const std::string address = a().address();
  a_.Send(1, 8, std::size_t{64} << 20);
  a_.Send(1, 9, 10);
  while (a_.PollOnce()) {
  }
  b_.Drop(0);
  ASSERT_TRUE(testing::Drive({&a_}, [&] { return a_.sent.size() == 3; }));
  ExpectDown(a_, StatusCode::kUnavailable);
  EXPECT_NE(a_.down[0].second.message().find(address), std::string::npos)
      << a_.down[0].second.ToString();
  EXPECT_TRUE(a_.sent[0].second.ok());
  for (std::size_t i : {1, 2}) {
    EXPECT_EQ(a_.sent[i].second.code(), StatusCode::kUnavailable);
  }
  a_.Send(1, 10, 10);
  EXPECT_EQ(a_.sent.size(), 3U);
  ASSERT_TRUE(testing::Drive({&a_}, [&] { return a_.sent.size() == 4; }))
      << "a send after the end ends too";
  EXPECT_FALSE(a_.sent[3].second.ok());
  EXPECT_EQ(a_.down.size(), 1U);
}

TEST_P(LinkConformance, WhatWasSentBeforeThePeerLeftStillComes) {
  Join();
  b_.Send(0, 1, 100);
  b_.Send(0, 2, 4000);
  ASSERT_TRUE(
      testing::Drive({&b_}, [&] { return b().queued_messages() == 0; }));
  b_.Drop(0);
  ASSERT_TRUE(testing::Drive({&a_}, [&] { return a_.down.size() == 1; }));
  EXPECT_EQ(a_.received.size(), 2U);
  for (const Received& message : a_.received) EXPECT_TRUE(Intact(message));
  ExpectDown(a_, StatusCode::kUnavailable);
}

TEST_P(LinkConformance, DeathWakesASleeper) {
  Join();
  std::thread dying([&] { b_.Drop(0); });
  EXPECT_TRUE(a_.Await([&] { return !a_.down.empty(); }));
  dying.join();
}

TEST_P(LinkConformance, ARefusedHeaderEndsTheLinkOnBothSides) {
  Join();
  b_.refuse = Status(StatusCode::kInternal, "not this one");
  a_.Send(1, 1, 100);
  ASSERT_TRUE(Drive([&] { return !a_.down.empty() && !b_.down.empty(); }));
  EXPECT_EQ(b_.down[0].second.message(), "not this one");
  ExpectDown(a_, StatusCode::kUnavailable);
  EXPECT_TRUE(b_.received.empty());
}

TEST_P(LinkConformance, NothingRunsAfterACallbackHasClosedTheLink) {
  Join();
  b_.on_message = [&](const Header&) { b().Close(); };
  b_.Send(0, 5, std::size_t{9} << 20);
  a_.Send(1, 1, 100);
  a_.Send(1, 2, 100);
  ASSERT_TRUE(Drive([&] { return a_.down.size() == 1; }));
  for (int i = 0; i < 100; ++i) b_.PollOnce();
  EXPECT_EQ(b_.received.size(), 1U);
  EXPECT_TRUE(b_.sent.empty());
  EXPECT_TRUE(b_.down.empty());
}

// The situations in which a link can be closed.
struct Situation {
  const char* what;
  void (*bring_about)(LinkOwner* mine, LinkOwner* peers);
};
constexpr std::size_t kLarge = std::size_t{32} << 20;
constexpr Situation kSituations[] = {
    {"idle", [](LinkOwner*, LinkOwner*) {}},
    {"asleep", [](LinkOwner* mine,
                  LinkOwner*) { EXPECT_TRUE(mine->to(1).PrepareToSleep()); }},
    {"with sends queued",
     [](LinkOwner* mine, LinkOwner*) {
       for (std::uint64_t i = 0; i < 9; ++i) mine->Send(1, i, 1000);
     }},
    {"in the middle of a send",
     [](LinkOwner* mine, LinkOwner*) {
       mine->Send(1, 1, kLarge);
       while (mine->PollOnce()) {
       }
     }},
    {"in the middle of a receive",
     [](LinkOwner* mine, LinkOwner* peers) {
       peers->Send(0, 1, kLarge);
       EXPECT_TRUE(Drive({mine, peers}, [&] { return mine->headers == 1; }));
     }},
    {"paused",
     [](LinkOwner* mine, LinkOwner* peers) {
       mine->pause = true;
       peers->Send(0, 1, 1000);
       EXPECT_TRUE(Drive({mine, peers}, [&] { return mine->headers == 1; }));
     }},
    {"with an end not yet seen",
     [](LinkOwner* mine, LinkOwner* peers) {
       mine->Send(1, 1, 1000);
       peers->Drop(0);
     }},
    {"after its end",
     [](LinkOwner* mine, LinkOwner* peers) {
       peers->Drop(0);
       EXPECT_TRUE(Drive({mine}, [&] { return mine->down.size() == 1; }));
       mine->Send(1, 1, 1000);
     }},
};

TEST_P(LinkConformance, ClosesInEveryStateAtOnceAndForGood) {
  for (const Situation& situation : kSituations) {
    SCOPED_TRACE(situation.what);
    const std::size_t descriptors = CountEntries("/proc/self/fd");
    {
      LinkOwner mine;
      LinkOwner peers;
      GetParam().join(&mine, &peers);
      situation.bring_about(&mine, &peers);
      const std::size_t received = mine.received.size();
      const std::size_t sent = mine.sent.size();
      const std::size_t down = mine.down.size();
      mine.to(1).Close();
      mine.to(1).Close();
      EXPECT_EQ(mine.to(1).queued_messages(), 0U);
      mine.Send(1, 99, 10);
      for (int i = 0; i < 50; ++i) mine.PollOnce();
      EXPECT_EQ(mine.received.size(), received);
      EXPECT_EQ(mine.sent.size(), sent);
      EXPECT_EQ(mine.down.size(), down);
    }
    EXPECT_EQ(CountEntries("/proc/self/fd"), descriptors);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinkConformance);

}  // namespace gradientflow::testing
