#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/secret.h"
#include "tests/transports/rendezvous_ranks.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow {
namespace {

using rendezvous::FrameType;
using rendezvous_test::AllCards;
using rendezvous_test::CardOf;
using rendezvous_test::Cards;
using rendezvous_test::ConnectWithPatience;
using rendezvous_test::ExchangeCards;
using rendezvous_test::FreeAddress;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using std::chrono::milliseconds;
using std::chrono::seconds;

class RendezvousAt : public ::testing::TestWithParam<const char*> {};

TEST_P(RendezvousAt, GivesEveryRankAllCards) {
  for (const int size : {1, 2, 3, 5, 8}) {
    const std::string address = FreeAddress(GetParam());
    if (address.empty()) {
      GTEST_SKIP() << "SKIPPED, NOT TESTED: no address " << GetParam();
    }
    std::vector<RendezvousOptions> all;
    for (int r = size - 1; r >= 0; --r) {
      all.push_back(OptionsFor(address, r, size, seconds(10)));
    }
    for (const Cards& cards : Meet(all)) {
      ASSERT_TRUE(cards.ok()) << cards.status().ToString();
      EXPECT_EQ(cards.value(), AllCards(size));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RendezvousAt,
                         ::testing::Values("127.0.0.1:0", "[::1]:0"));

TEST(RendezvousTcp, CardsOfTheLargestSizePass) {
  const std::string address = FreeAddress();
  const SteadyClock clock;
  std::vector<std::string> cards = {std::string(kMaxCardBytes, 'a'),
                                    std::string(kMaxCardBytes, 'b')};
  Cards other(Status(StatusCode::kInternal, ""));
  std::thread thread([&] {
    other =
        ExchangeCards(OptionsFor(address, 1, 2, seconds(10)), cards[1], clock);
  });
  const Cards mine =
      ExchangeCards(OptionsFor(address, 0, 2, seconds(10)), cards[0], clock);
  thread.join();
  ASSERT_TRUE(mine.ok()) << mine.status().ToString();
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(mine.value(), cards);
  EXPECT_EQ(other.value(), cards);
  EXPECT_EQ(ExchangeCards(OptionsFor(address, 0, 2, seconds(1)),
                          std::string(kMaxCardBytes + 1, 'c'), clock)
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST(RendezvousTcp, MissingRanksAreNamedToAllThatCame) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(address, 0, 6, milliseconds(300)),
                             OptionsFor(address, 2, 6, milliseconds(300)),
                             OptionsFor(address, 5, 6, seconds(10))});
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(result, "ranks 1, 3, 4 of 6 did not join in time"))
        << result.status().ToString();
  }
}

TEST(RendezvousTcp, AMissingRankZeroIsReportedWithItsAddress) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(address, 1, 2, milliseconds(200))});
  EXPECT_EQ(results[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(results[0], "cannot reach rank 0 at " + address))
      << results[0].status().ToString();
}

TEST(RendezvousTcp, AWrongTokenIsRefusedAndTheOthersGoOn) {
  const std::string address = FreeAddress();
  RendezvousOptions stranger = OptionsFor(address, 1, 3, seconds(10));
  stranger.secret = JobSecret("Secret", "");
  // The last rank comes only once the stranger is gone.
  std::vector<Cards> others;
  std::thread ranks([&] {
    others = Meet({OptionsFor(address, 0, 3, seconds(10)),
                   OptionsFor(address, 2, 3, seconds(10))});
  });
  const auto refused = Meet({stranger});
  EXPECT_EQ(refused[0].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(refused[0], "its job token differs"))
      << refused[0].status().ToString();
  EXPECT_FALSE(Says(refused[0], "secret")) << "the token itself leaks";
  const auto last = Meet({OptionsFor(address, 1, 3, seconds(10))});
  ranks.join();
  ASSERT_TRUE(last[0].ok()) << last[0].status().ToString();
  for (const Cards& cards : others) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
    EXPECT_EQ(cards.value(), AllCards(3));
  }
}

TEST(RendezvousTcp, AnotherSizeIsRefusedAndTheOthersGoOn) {
  const std::string address = FreeAddress();
  std::vector<Cards> results;
  std::thread ranks([&] {
    results = Meet({OptionsFor(address, 0, 3, seconds(10)),
                    OptionsFor(address, 2, 3, seconds(10))});
  });
  const auto refused = Meet({OptionsFor(address, 1, 4, seconds(10))});
  EXPECT_EQ(refused[0].status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(refused[0], "rank 1 (127.0.0.1:") &&
              Says(refused[0], "expects 4 ranks") &&
              Says(refused[0], "(" + address + ") expects 3"))
      << refused[0].status().ToString();
  const auto last = Meet({OptionsFor(address, 1, 3, seconds(10))});
  ranks.join();
  EXPECT_TRUE(last[0].ok()) << last[0].status().ToString();
  for (const Cards& cards : results) {
    EXPECT_TRUE(cards.ok()) << cards.status().ToString();
  }
}

TEST(RendezvousTcp, WhoWasLeftOutIsNamedIfTheRightOneDoesNotCome) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(address, 0, 3, milliseconds(500)),
                             OptionsFor(address, 1, 3, milliseconds(500)),
                             OptionsFor(address, 2, 5, seconds(10))});
  for (const int i : {0, 1}) {
    EXPECT_EQ(results[i].status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(results[i], "ranks 2 of 3 did not join in time") &&
                Says(results[i], "left out: rank 2 (127.0.0.1:") &&
                Says(results[i], "expects 5 ranks"))
        << results[i].status().ToString();
  }
}

TEST(RendezvousTcp, StrangersDisturbNobody) {
  const std::string address = FreeAddress();
  std::vector<Cards> results;
  std::thread ranks(
      [&] { results = Meet({OptionsFor(address, 0, 2, seconds(10))}); });
  const Socket silent = ConnectWithPatience(address);
  const Socket garbage = ConnectWithPatience(address);
  const Socket huge = ConnectWithPatience(address);
  ASSERT_TRUE(silent.valid() && garbage.valid() && huge.valid());
  const std::string http = "GET / HTTP/1.0\r\n\r\n";
  ASSERT_EQ(Send(garbage, http.data(), http.size()),
            static_cast<std::int64_t>(http.size()));
  // Announces more bytes than any join may have.
  std::string frame = rendezvous::EncodeFrame(rendezvous::FrameType::kJoin, "");
  frame[8 + 5] = 1;
  ASSERT_EQ(Send(huge, frame.data(), frame.size()),
            static_cast<std::int64_t>(frame.size()));
  for (const Socket* dropped : {&garbage, &huge}) {
    pollfd ready = {dropped->fd(), POLLIN, 0};
    // It is challenged, and then dropped without a word.
    char byte;
    std::int64_t heard = 0;
    while (::poll(&ready, 1, 5000) == 1 && Receive(*dropped, &byte, 1) == 1) {
      ++heard;
    }
    EXPECT_EQ(heard, 48);
    EXPECT_LE(Receive(*dropped, &byte, 1), 0);
  }
  const auto other = Meet({OptionsFor(address, 1, 2, seconds(10))});
  ranks.join();
  EXPECT_TRUE(other[0].ok()) << other[0].status().ToString();
  EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
}

TEST(RendezvousTcp, ATakenPortIsReported) {
  const Result<Socket> taken =
      ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0);
  ASSERT_TRUE(taken.ok());
  const std::string address = LocalAddress(taken.value()).ToString();
  const auto results = Meet({OptionsFor(address, 0, 2, seconds(10))});
  EXPECT_EQ(results[0].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(results[0], address) &&
              Says(results[0], "Address already in use"))
      << results[0].status().ToString();
}

// 198.51.100.0/24 is for documentation: no host has such an address.
std::string Elsewhere(const std::string& address) {
  return "198.51.100.7" + address.substr(address.rfind(':'));
}

TEST(RendezvousTcp, RankZeroNeedNotOwnTheAddress) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(Elsewhere(address), 0, 2, seconds(10)),
                             OptionsFor(address, 1, 2, seconds(10))});
  for (const Cards& cards : results) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
    EXPECT_EQ(cards.value(), AllCards(2));
  }
}

TEST(RendezvousTcp, AnAddressOfNobodyExplainsThatNobodyComes) {
  const std::string address = Elsewhere(FreeAddress());
  const auto results =
      Meet({OptionsFor(address, 0, 2, std::chrono::milliseconds(200))});
  EXPECT_EQ(results[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(results[0], address + " is no address of rank 0's host"))
      << results[0].status().ToString();
}

// Ranks meet at the loopback without a token. A host that lacks it, as a fresh
// network namespace lacks that of IPv6, must not be open to others instead.
TEST(RendezvousTcp, TheLoopbackIsNeverReplacedByOtherAddresses) {
  bool alone = true;
  std::vector<Cards> results;
  std::thread([&] {
    alone = ::unshare(CLONE_NEWNET) == 0;
    if (!alone) return;
    results.push_back(
        ExchangeCards(OptionsFor("[::1]:29500", 0, 2, milliseconds(200)),
                      CardOf(0), SteadyClock()));
  }).join();
  if (!alone) {
    GTEST_SKIP() << "SKIPPED, NOT TESTED: no network namespace of its own";
  }
  for (const Cards& cards : results) {
    EXPECT_EQ(cards.status().code(), StatusCode::kFailedPrecondition)
        << cards.status().ToString();
  }
}

TEST(RendezvousTcp, BadOptionsAreReported) {
  for (const char* address : {"", "host", "host:", ":80", "host:99999", "::1:5",
                              "[::1]", "host:5x"}) {
    for (const int rank : {0, 1}) {
      const auto results = Meet({OptionsFor(address, rank, 2, seconds(1))});
      EXPECT_EQ(results[0].status().code(), StatusCode::kInvalidArgument)
          << address;
    }
  }
  EXPECT_FALSE(Meet({OptionsFor("127.0.0.1:1", 2, 2, seconds(1))})[0].ok());
}

// The example in gradientflow/docs/wire_format.md.
TEST(RendezvousFrames, TheDocumentedExampleHolds) {
  Bits256 challenge;
  Bits256 nonce;
  challenge.fill(std::byte{0xC0});
  nonce.fill(std::byte{0x4A});
  rendezvous::Join join{1, 2, nonce, {}};
  join.proof = rendezvous::ProofOf(FrameType::kJoin, JobSecret("t", ""),
                                   challenge, join);
  const std::string frame =
      rendezvous::EncodeFrame(FrameType::kJoin, rendezvous::EncodeJoin(join));
  EXPECT_EQ(Hex(frame.substr(0, 24)),
            "474652560300010048000000000000000100000002000000");
  EXPECT_EQ(Hex(frame.substr(24, 32)), Hex(View(nonce)));
  EXPECT_EQ(Hex(frame.substr(56)),
            "a1e2b2733985c5a4b6aecf61e1a24fdf256ab09b815cd5509980b318e4620659");
}

TEST(RendezvousFrames, CutOrPaddedBodiesAreNotTaken) {
  const rendezvous::Join join{3, 9, RandomBits().value(), RandomBits().value()};
  const std::string body = rendezvous::EncodeJoin(join);
  EXPECT_EQ(body.size(), rendezvous::kMostStrangerBytes);
  const auto decoded = rendezvous::DecodeJoin(body);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->rank, 3u);
  EXPECT_EQ(decoded->proof, join.proof);
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(rendezvous::DecodeJoin(body.substr(0, bytes)).has_value());
  }
  EXPECT_FALSE(rendezvous::DecodeJoin(body + "x").has_value());
}

}  // namespace
}  // namespace gradientflow
