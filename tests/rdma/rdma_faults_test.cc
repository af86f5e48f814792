#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/rdma/rdma_ranks.h"

// Networks that lose, delay and end in the middle of traffic of all kinds:
// short messages, long ones, and placed ones.
namespace gradientflow::testing {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

constexpr std::size_t kPutBytes = 20000;  // Of each placed message.
// A place for each of 4 ranks, and what this rank puts.
constexpr std::size_t kPlacedBytes = 5 * kPutBytes;
constexpr int kNotices = 16;

// Counts the notices of each peer, and checks the bytes that they are about.
class Notices final : public RemotePlaces::Sink {
 public:
  void OnNotice(int peer, std::uint32_t notice) override {
    seen.emplace_back(peer, notice);
  }
  std::vector<std::pair<int, std::uint32_t>> seen;
};

class RdmaFaults : public ::testing::Test {
 protected:
  void Join(int ranks, const FakeVerbsOptions& verbs = {},
            double retry_seconds = 0.02) {
    ranks_ = std::make_unique<RdmaRanks>(ranks, verbs);
    ranks_->options.placed_slot_bytes = kPlacedBytes;
    ranks_->options.placed_notices = kNotices;
    ranks_->options.own["rdma_retry_seconds"] = std::to_string(retry_seconds);
    ASSERT_TRUE(ranks_->Open());
    ranks_->Connect(false);
    for (int r = 0; r < ranks; ++r) {
      ASSERT_TRUE((*ranks_)[r].connected.ok())
          << (*ranks_)[r].connected.ToString();
      places(r).SetSink(&sinks_.emplace_back());
    }
  }
  RdmaRanks::Rank& rank(int r) { return (*ranks_)[r]; }
  RemotePlaces& places(int r) { return *rank(r).endpoint->places(); }

  // Queues a message of a random kind from rank `r` to rank `p`.
  void SendAny(int r, int p) {
    switch (random_() % 4) {
      case 0:
        return Put(r, p);
      case 1:  // From memory that the card reaches.
      case 2:
        return rank(r).owner.Send(p, random_(), random_() % 4200,
                                  static_cast<int>(random_() % 9));
      default:
        return rank(r).owner.Send(p, random_(), random_() % 900000,
                                  static_cast<int>(random_() % 9));
    }
  }
  // No more than the peer has room for, as a schedule would do it.
  void Put(int r, int p) {
    auto& count = puts_[{r, p}];
    const auto& seen = sinks_[static_cast<std::size_t>(p)].seen;
    const auto taken = static_cast<std::uint32_t>(
        std::count_if(seen.begin(), seen.end(),
                      [r](const auto& notice) { return notice.first == r; }));
    if (count - taken >= kNotices / 2) return;
    const ConstBufferView piece = {
        places(r).slots().data + 4 * kPutBytes, kPutBytes, {}};
    const RemotePlace there =
        places(r).SlotsOf(p).At(static_cast<std::size_t>(r) * kPutBytes);
    places(r).Put(p, {&piece, 1}, there, count++,
                  {[](void* self, std::uint64_t, std::uint32_t, const Status&) {
                     ++*static_cast<std::size_t*>(self);
                   },
                   &put_dones_, 0});
  }
  // That what has arrived is what was sent, in order, each once.
  void ExpectIntact(int r) {
    for (const Received& message : rank(r).owner.received) {
      ASSERT_TRUE(Intact(message));
    }
    std::map<int, std::uint32_t> next;
    for (const auto& [peer, notice] :
         sinks_[static_cast<std::size_t>(r)].seen) {
      ASSERT_EQ(notice, next[peer]++);
    }
  }
  bool AllSent(int r, std::size_t queued) {
    return rank(r).owner.sent.size() == queued;
  }

  std::unique_ptr<RdmaRanks> ranks_;
  std::deque<Notices> sinks_;
  std::map<std::pair<int, int>, std::uint32_t> puts_;
  std::size_t put_dones_ = 0;
  std::mt19937 random_{1};
};

TEST_F(RdmaFaults, WhatIsLostOrLateArrivesOnceIntactAndInOrder) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    FakeVerbsOptions verbs;
    verbs.seed = seed;
    verbs.lost = seed % 2 == 0 ? 0.03 : 0;
    verbs.lost_acks = seed % 3 == 0 ? 0.1 : 0;
    verbs.delay = microseconds(seed % 2 == 0 ? 0 : 30);
    verbs.late_share = 0.5;
    verbs.late_by = microseconds(200);
    sinks_.clear();
    puts_.clear();
    put_dones_ = 0;
    random_.seed(static_cast<std::uint32_t>(seed));
    Join(3, verbs);
    constexpr std::size_t kRounds = 60;
    for (std::size_t i = 0; i < kRounds; ++i) {
      for (int r = 0; r < 3; ++r) {
        SendAny(r, (r + 1) % 3);
        SendAny(r, (r + 2) % 3);
        if (random_() % 3 == 0) rank(r).owner.PollOnce();
      }
    }
    const auto done = [&] {
      std::size_t sent = 0;
      std::size_t received = 0;
      std::size_t noticed = 0;
      std::size_t put = 0;
      std::size_t queued = 0;
      for (int r = 0; r < 3; ++r) {
        sent += rank(r).owner.sent.size();
        received += rank(r).owner.received.size();
        noticed += sinks_[static_cast<std::size_t>(r)].seen.size();
        for (int p = 0; p < 3; ++p) {
          if (p == r) continue;
          queued += rank(r).owner.to(p).queued_messages();
          put += puts_[{r, p}];
        }
      }
      return queued == 0 && sent == received && noticed == put &&
             put_dones_ == put && received > kRounds;
    };
    ASSERT_TRUE(ranks_->Drive(done));
    for (int r = 0; r < 3; ++r) {
      ExpectIntact(r);
      EXPECT_TRUE(rank(r).owner.down.empty());
      for (const auto& [tag, status] : rank(r).owner.sent) {
        EXPECT_TRUE(status.ok());
      }
      EXPECT_EQ(ranks_->fake.stats(r).rnr, 0U);
    }
    if (seed % 2 == 0) {
      EXPECT_GT(ranks_->fake.stats(0).retries, 0U);
    }
  }
}

// ---- Ends

struct End {
  const char* name;
  // What happens to rank 1 or its devices.
  void (*happen)(FakeVerbs* fake, std::mt19937* random);
  // Whether rank 1 alone is concerned, and has to say so itself.
  const char* text;
};
void PrintTo(const End& end, std::ostream* out) { *out << end.name; }

class RdmaEnds : public RdmaFaults,
                 public ::testing::WithParamInterface<End> {};

// In the middle of traffic of 3 ranks. Links of rank 1 end, both ends with a
// reason; what was sent ends with it or had left; nothing that arrived is
// wrong. Ranks 0 and 2 go on.
TEST_P(RdmaEnds, InTheMiddleOfTraffic) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    random_.seed(seed);
    sinks_.clear();
    puts_.clear();
    Join(3);
    std::vector<std::size_t> queued(3);
    const std::uint32_t when = random_() % 60;
    for (std::uint32_t i = 0; i < 80; ++i) {
      if (i == when) GetParam().happen(&ranks_->fake, &random_);
      for (int r = 0; r < 3; ++r) {
        rank(r).owner.Send((r + 1) % 3, random_(), random_() % 200000,
                           static_cast<int>(random_() % 9));
        rank(r).owner.Send((r + 2) % 3, random_(), random_() % 5000,
                           static_cast<int>(random_() % 9));
        queued[static_cast<std::size_t>(r)] += 2;
        if (rank(1).owner.down.empty()) Put(r, (r + 1) % 3);
        if (random_() % 2 == 0) rank(r).owner.PollOnce();
      }
    }
    ASSERT_TRUE(ranks_->Drive([&] {
      return !rank(0).owner.down.empty() && !rank(2).owner.down.empty() &&
             rank(1).owner.down.size() == 2 && AllSent(0, queued[0]) &&
             AllSent(1, queued[1]) && AllSent(2, queued[2]);
    })) << rank(0).owner.down.size()
        << rank(1).owner.down.size() << rank(2).owner.down.size();
    for (const int r : {0, 2}) {
      ASSERT_EQ(rank(r).owner.down.size(), 1U);
      EXPECT_EQ(rank(r).owner.down[0].first, 1);
      EXPECT_THAT(rank(r).owner.down[0].second.message(),
                  HasSubstr("rank 1 ("));
    }
    std::string texts;
    for (int r = 0; r < 3; ++r) {
      for (const auto& [peer, why] : rank(r).owner.down) {
        EXPECT_EQ(why.message().find("flushed"), std::string::npos)
            << why.message();
        texts += why.message() + "\n";
      }
      for (const Received& message : rank(r).owner.received) {
        // The last words are a control message.
        if (message.header.kind == MessageKind::kAbort) continue;
        ASSERT_TRUE(Intact(message));
      }
    }
    EXPECT_THAT(texts, HasSubstr(GetParam().text));
    // The others go on, with all their slots.
    const std::size_t before = rank(2).owner.messages;
    rank(0).owner.Send(2, 7, 3000000, 4);
    rank(0).owner.Send(2, 8, 5, 0);
    ASSERT_TRUE(
        ranks_->Drive([&] { return rank(2).owner.messages == before + 2; }));
  }
}

constexpr End kEnds[] = {
    {"Message",
     [](FakeVerbs* fake, std::mt19937*) {
       fake->FailMessage(1, 1, IBV_WC_RETRY_EXC_ERR);
       fake->FailMessage(1, 30, IBV_WC_REM_ACCESS_ERR);
       // On whichever link the first one was, the other has to end, too.
       fake->Inject("fake1", IBV_EVENT_DEVICE_FATAL);
     },
     "fake1:1"},
    {"Killed", [](FakeVerbs* fake, std::mt19937*) { fake->KillHost(1); },
     "transport retry counter exceeded"},
    {"Removed",
     [](FakeVerbs* fake, std::mt19937*) { fake->RemoveDevice("fake1"); },
     "RDMA of rank 1 (fake1:1)"},
    {"PortDown",
     [](FakeVerbs* fake, std::mt19937*) { fake->SetPort("fake1", 1, false); },
     "this rank's device says: port error"},
    {"AddressGone",
     [](FakeVerbs* fake, std::mt19937*) { fake->SetGid("fake1", 1, 4, {}); },
     "its address is gone"},
};
INSTANTIATE_TEST_SUITE_P(Of, RdmaEnds, ::testing::ValuesIn(kEnds),
                         [](const auto& end) {
                           return std::string(end.param.name);
                         });

// ---- Peers that do not poll

TEST_F(RdmaFaults, APeerThatNeverPollsBlocksNoOneElse) {
  Join(3);
  for (std::uint64_t i = 0; i < 200; ++i) {
    rank(0).owner.Send(1, i, 300000, static_cast<int>(i % 9));
    rank(0).owner.Send(2, i, 300000, static_cast<int>(i % 9));
  }
  ASSERT_TRUE(Drive({&rank(0).owner, &rank(2).owner},
                    [&] { return rank(2).owner.received.size() == 200; }));
  EXPECT_TRUE(rank(1).owner.received.empty());
  EXPECT_EQ(ranks_->fake.stats(0).rnr, 0U);
  ASSERT_TRUE(
      ranks_->Drive([&] { return rank(1).owner.received.size() == 200; }));
  ExpectIntact(1);
}

// ---- Receivers are always ready

TEST_F(RdmaFaults, NoMessageFindsAReceiverThatIsNotReady) {
  constexpr std::size_t kMessages = 10000;
  FakeVerbsOptions verbs;
  verbs.late_share = 0.1;
  Join(4, verbs);
  std::size_t sent = 0;
  std::vector<std::size_t> to(4);
  const auto received = [&] {
    for (int r = 0; r < 4; ++r) {
      if (rank(r).owner.messages < to[static_cast<std::size_t>(r)]) {
        return false;
      }
    }
    return true;
  };
  for (int r = 0; r < 4; ++r) rank(r).owner.keep_payloads = false;
  while (sent < kMessages) {
    const int r = static_cast<int>(random_() % 4);
    const int p = (r + 1 + static_cast<int>(random_() % 3)) % 4;
    // Mostly short, since these are what receives are used up by.
    const std::size_t bytes = random_() % (std::size_t{1} << random_() % 15);
    rank(r).owner.Send(p, sent, bytes, static_cast<int>(random_() % 9));
    Put(r, p);
    ++to[static_cast<std::size_t>(p)];
    // Some ranks poll often, and others have long pauses.
    const int polls = static_cast<int>(random_() % 3);
    for (int i = 0; i < polls; ++i) {
      rank(static_cast<int>(random_() % (1 + sent / 500 % 4))).owner.PollOnce();
    }
    ++sent;
    ASSERT_TRUE(sent % 500 != 0 || ranks_->Drive(received));
  }
  ASSERT_TRUE(ranks_->Drive(received));
  for (int r = 0; r < 4; ++r) {
    const FakeVerbsStats stats = ranks_->fake.stats(r);
    EXPECT_EQ(stats.rnr, 0U);
    EXPECT_EQ(stats.retries, 0U);
    EXPECT_EQ(stats.errors, 0U);
  }
}

// ---- Memory

// The same ranks join again on the same cards.
TEST_F(RdmaFaults, TheKeysOfAJobAreWorthNothingInTheNextOne) {
  Join(3);
  const RemotePlace before = places(0).SlotsOf(1);
  ranks_->Leave();
  sinks_.clear();
  ASSERT_TRUE(ranks_->Open());
  ranks_->Connect(false);
  for (int r = 0; r < 3; ++r) places(r).SetSink(&sinks_.emplace_back());
  const RemotePlace now = places(0).SlotsOf(1);
  EXPECT_NE(before.key, now.key);
  // With today's address and yesterday's key.
  const ConstBufferView piece = {places(0).slots().data, 64, {}};
  places(0).Put(1, {&piece, 1}, now, 1, {});
  ASSERT_TRUE(ranks_->Drive([&] { return sinks_[1].seen.size() == 1; }));
  RemotePlace mixed = now;
  mixed.key = before.key;
  std::byte* const there = places(1).slots().data;
  std::fill_n(there, 64, std::byte{7});
  places(0).Put(1, {&piece, 1}, mixed, 2, {});
  ASSERT_TRUE(ranks_->Drive([&] {
    return !rank(0).owner.down.empty() && !rank(1).owner.down.empty();
  }));
  EXPECT_EQ(ranks_->fake.stats(1).refused_writes, 1U);
  EXPECT_EQ(there[0], std::byte{7});
  EXPECT_EQ(sinks_[1].seen.size(), 1U);
  EXPECT_EQ(rank(0).owner.down[0].first, 1);
  EXPECT_THAT(rank(0).owner.down[0].second.message(),
              HasSubstr("remote access error"));
}

TEST_F(RdmaFaults, LittleIsRegisteredAndOnlyForWhatItIsFor) {
  ranks_ = std::make_unique<RdmaRanks>(8);
  ranks_->options.placed_slot_bytes = std::size_t{32} << 20;
  ranks_->options.placed_notices = 64;
  ASSERT_TRUE(ranks_->Open());
  ranks_->Connect(false);
  ranks_->ExpectTraffic(10, 1);
  for (int r = 0; r < 8; ++r) {
    const FakeVerbsStats stats = ranks_->fake.stats(r);
    EXPECT_LE(stats.most_registered_bytes, std::uint64_t{64} << 20);
    EXPECT_EQ(
        stats.access_granted & (IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND),
        0U);
  }
}

}  // namespace
}  // namespace gradientflow::testing
