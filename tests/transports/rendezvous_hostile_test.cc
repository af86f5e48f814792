#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/rendezvous_ranks.h"
#include "tests/transports/rendezvous_talker.h"
#include "transports/rendezvous/frames.h"

// Processes that break the rules of the rendezvous over TCP, or end in it.
namespace gradientflow {
namespace {

using rendezvous::FrameType;
using rendezvous_test::AllCards;
using rendezvous_test::CardOf;
using rendezvous_test::Cards;
using rendezvous_test::ExchangeCards;
using rendezvous_test::FreeAddress;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using rendezvous_test::Talker;
using std::chrono::seconds;

TEST(RendezvousHostile, OfTwoThatClaimARankTheEarlierIsLeftOut) {
  const std::string address = FreeAddress();
  std::vector<Cards> results;
  std::thread ranks([&] {
    results = Meet({OptionsFor(address, 0, 4, seconds(10)),
                    OptionsFor(address, 1, 4, seconds(10))});
  });
  Talker stale(address);
  ASSERT_TRUE(stale.Join(2, 4));
  const auto last = Meet({OptionsFor(address, 2, 4, seconds(10)),
                          OptionsFor(address, 3, 4, seconds(10))});
  ranks.join();
  ASSERT_TRUE(stale.Await(FrameType::kRefused));
  const Status why = rendezvous::DecodeStatus(stale.frame().body);
  EXPECT_EQ(why.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(why.message().find("rank 2 is claimed twice: by 127.0.0.1:"),
            std::string::npos)
      << why.message();
  results.insert(results.end(), last.begin(), last.end());
  for (const Cards& cards : results) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
    EXPECT_EQ(cards.value(), AllCards(4));
  }
}

// A death while others are awaited, and one when all have come.
TEST(RendezvousHostile, ARankThatLeavesFailsAllAtOnce) {
  for (const int size : {4, 3}) {
    const std::string address = FreeAddress();
    const SteadyClock clock;
    std::vector<Cards> results;
    // Whoever comes after rank 0 has left waits in vain, so that rank 1 is
    // there only where all others have joined.
    std::vector<RendezvousOptions> others;
    for (int r = 0; r < (size == 3 ? 2 : 1); ++r) {
      others.push_back(OptionsFor(address, r, size, seconds(60)));
    }
    std::thread ranks([&] { results = Meet(others); });
    {
      Talker rank(address);
      ASSERT_TRUE(rank.Join(2, size));
      ASSERT_TRUE(size > 3 || rank.Await(FrameType::kIntroduction));
    }  // Gone, without an acknowledgement.
    const Clock::Time gone = clock.Now();
    ranks.join();
    EXPECT_LT(Seconds(clock.Now() - gone), 1);
    for (const Cards& result : results) {
      EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
      EXPECT_TRUE(Says(result, "rank 2 (127.0.0.1:") &&
                  Says(result, "left the rendezvous"))
          << result.status().ToString();
    }
  }
}

// Follows a clock that it is told.
TEST(RendezvousHostile, ARankThatFallsSilentIsLeftOutAndTheRightOneTaken) {
  const std::string address = FreeAddress();
  ManualClock clock;
  Cards zero(Status(StatusCode::kInternal, ""));
  RendezvousOptions options = OptionsFor(address, 0, 2, seconds(0));
  options.deadline = clock.Now() + seconds(100);
  std::thread rank_zero(
      [&] { zero = ExchangeCards(options, CardOf(0), clock); });
  Talker silent(address);
  ASSERT_TRUE(silent.Join(1, 2));
  ASSERT_TRUE(silent.Await(FrameType::kIntroduction));
  clock.Advance(seconds(11));
  ASSERT_TRUE(silent.Await(FrameType::kRefused));
  const Status why = rendezvous::DecodeStatus(silent.frame().body);
  EXPECT_NE(why.message().find("rank 1 (127.0.0.1:"), std::string::npos);
  EXPECT_NE(why.message().find("silent"), std::string::npos) << why.message();
  const auto right = Meet({OptionsFor(address, 1, 2, seconds(10))});
  rank_zero.join();
  ASSERT_TRUE(right[0].ok()) << right[0].status().ToString();
  ASSERT_TRUE(zero.ok()) << zero.status().ToString();
  EXPECT_EQ(zero.value(), AllCards(2));
}

TEST(RendezvousHostile, WhoProvesNothingIsDroppedAfterTenSeconds) {
  const std::string address = FreeAddress();
  ManualClock clock;
  RendezvousOptions options = OptionsFor(address, 0, 2, seconds(0));
  options.deadline = clock.Now() + seconds(100);
  std::thread rank_zero(
      [&] { static_cast<void>(ExchangeCards(options, CardOf(0), clock)); });
  Talker silent(address);
  ASSERT_TRUE(silent.Await(FrameType::kChallenge));
  clock.Advance(seconds(9));
  Talker later(address);
  ASSERT_TRUE(later.Await(FrameType::kChallenge));
  clock.Advance(seconds(2));
  EXPECT_FALSE(silent.Await(FrameType::kWelcome)) << "closed";
  EXPECT_TRUE(later.Send(FrameType::kJoin, "garbage"));
  clock.Advance(seconds(100));
  rank_zero.join();
}

// ---- Forgeries. None may be welcomed, and none may end the job.

class ForgedJoins : public ::testing::Test {
 protected:
  ForgedJoins() : address_(FreeAddress()) {
    ranks_ = std::thread([this] {
      results_ = Meet({OptionsFor(address_, 0, 3, seconds(60)),
                       OptionsFor(address_, 1, 3, seconds(60))});
    });
  }
  // The right rank 2 comes, and all end well.
  void ExpectTheJobGoesOn() {
    const auto last = Meet({OptionsFor(address_, 2, 3, seconds(60))});
    ranks_.join();
    EXPECT_TRUE(last[0].ok()) << last[0].status().ToString();
    for (const Cards& cards : results_) {
      ASSERT_TRUE(cards.ok()) << cards.status().ToString();
      EXPECT_EQ(cards.value(), AllCards(3));
    }
  }
  // Sends a join with the fields that `forge` leaves, after the challenge.
  bool IsWelcomed(
      const std::function<void(const Bits256&, rendezvous::Join*)>& forge) {
    Talker talker(address_);
    EXPECT_TRUE(talker.Await(FrameType::kChallenge));
    const Bits256 challenge = Talker::BitsIn(talker.frame().body);
    rendezvous::Join join{2, 3, RandomBits().value(), {}};
    join.proof =
        rendezvous::ProofOf(FrameType::kJoin, secret_, challenge, join);
    forge(challenge, &join);
    return talker.Send(FrameType::kJoin, rendezvous::EncodeJoin(join)) &&
           talker.Send(FrameType::kCard, "a card") &&
           talker.Await(FrameType::kWelcome);
  }

  const Bits256 secret_ = JobSecret("secret", "");
  const std::string address_;
  std::vector<Cards> results_;
  std::thread ranks_;
};

TEST_F(ForgedJoins, AreNotWelcomed) {
  using rendezvous::Join;
  using rendezvous::ProofOf;
  std::mt19937 random(12);
  // Another job, an earlier run of this one, no secret, another role, a proof
  // for other ranks, and one for an earlier challenge.
  const Bits256 strange[] = {JobSecret("Secret", ""),
                             JobSecret("secret", "none 1"), Bits256{}};
  for (const Bits256& secret : strange) {
    EXPECT_FALSE(IsWelcomed([&](const Bits256& challenge, Join* join) {
      join->proof = ProofOf(FrameType::kJoin, secret, challenge, *join);
    }));
  }
  EXPECT_FALSE(IsWelcomed([&](const Bits256& challenge, Join* join) {
    join->proof = ProofOf(FrameType::kWelcome, secret_, challenge, *join);
  }));
  EXPECT_FALSE(IsWelcomed([](const Bits256&, Join* join) { join->rank = 1; }));
  EXPECT_FALSE(IsWelcomed([](const Bits256&, Join* join) { join->size = 4; }));
  EXPECT_FALSE(IsWelcomed([](const Bits256& challenge, Join* join) {
    join->nonce = join->proof = challenge;  // Reflected.
  }));
  EXPECT_FALSE(IsWelcomed([&](const Bits256&, Join* join) {
    join->proof =
        ProofOf(FrameType::kJoin, secret_, RandomBits().value(), *join);
  }));
  // A recorded join, with a bit changed or as it was.
  Join recorded{2, 3, RandomBits().value(), {}};
  recorded.proof =
      ProofOf(FrameType::kJoin, secret_, RandomBits().value(), recorded);
  for (int i = 0; i < 250; ++i) {
    EXPECT_FALSE(IsWelcomed([&](const Bits256&, Join* join) {
      *join = recorded;
      const std::size_t bit = random() % (8 * join->proof.size());
      if (i % 2 == 0) join->proof[bit / 8] ^= std::byte{1} << (bit % 8);
    }));
  }
  // A fresh one, with a bit changed.
  for (int i = 0; i < 250; ++i) {
    EXPECT_FALSE(IsWelcomed([&](const Bits256&, Join* join) {
      const std::size_t bit = random() % (8 * join->proof.size());
      Bits256& changed = i % 2 == 0 ? join->proof : join->nonce;
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
    }));
  }
  ExpectTheJobGoesOn();
}

// A false rank 0 that knows no secret gets neither a rank nor its trust.
TEST(RendezvousHostile, AFalseRankZeroIsNotBelieved) {
  for (const FrameType first : {FrameType::kWelcome, FrameType::kChallenge}) {
    const Socket listener =
        ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value();
    const std::string address = LocalAddress(listener).ToString();
    std::vector<Cards> results;
    std::thread rank(
        [&] { results = Meet({OptionsFor(address, 1, 2, seconds(5))}); });
    pollfd ready = {listener.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    rendezvous::FrameStream stream(Accept(listener).value(), 1 << 20);
    const std::string bits(sizeof(Bits256), '\0');
    const std::string round(4, '\0');
    for (const FrameType type : {first, FrameType::kWelcome,
                                 FrameType::kIntroduction, FrameType::kGo}) {
      const bool is_bits =
          type == FrameType::kWelcome || type == FrameType::kChallenge;
      stream.Queue(rendezvous::MakeFrame(
          type, is_bits ? bits
                        : round + rendezvous::EncodeTexts({"false", "false"})));
    }
    static_cast<void>(stream.Flush());  // The rank may leave before the end.
    rank.join();
    EXPECT_FALSE(results[0].ok());
    EXPECT_EQ(results[0].status().code(), first == FrameType::kChallenge
                                              ? StatusCode::kFailedPrecondition
                                              : StatusCode::kDataLoss)
        << results[0].status().ToString();
  }
}

}  // namespace
}  // namespace gradientflow
