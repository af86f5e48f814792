#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/transports/rendezvous_ranks.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow {
namespace {

using rendezvous_test::AllCards;
using rendezvous_test::Cards;
using rendezvous_test::FreeAddress;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Connects to a rendezvous that may not listen yet.
Socket ConnectWithPatience(const std::string& address) {
  const SteadyClock clock;
  const Clock::Time give_up = clock.Now() + seconds(5);
  while (clock.Now() < give_up) {
    Result<Socket> socket = StartConnect(*SocketAddress::Parse(address), 0);
    if (!socket.ok()) continue;
    pollfd ready = {socket.value().fd(), POLLOUT, 0};
    ::poll(&ready, 1, 1000);
    if (ConnectError(socket.value()) == 0 &&
        PeerAddress(socket.value()).ToString() == address &&
        LocalAddress(socket.value()).ToString() != address) {
      return std::move(socket).value();
    }
    ::poll(nullptr, 0, 1);
  }
  return Socket();
}

class RendezvousAt : public testing::TestWithParam<const char*> {};

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
                         testing::Values("127.0.0.1:0", "[::1]:0"));

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
  stranger.job_token = "Secret";
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

TEST(RendezvousTcp, ARankClaimedTwiceFailsAllAndNamesBoth) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(address, 0, 4, seconds(3)),
                             OptionsFor(address, 1, 4, seconds(3)),
                             OptionsFor(address, 2, 4, seconds(3)),
                             OptionsFor(address, 2, 4, seconds(3))});
  // A rank that comes after rank 0 has left cannot have joined.
  int told = 0;
  for (const Cards& result : results) {
    EXPECT_FALSE(result.ok());
    if (result.status().code() != StatusCode::kInvalidArgument) continue;
    ++told;
    EXPECT_TRUE(Says(result, "rank 2 is claimed twice: by 127.0.0.1:") &&
                Says(result, " and by 127.0.0.1:"))
        << result.status().ToString();
  }
  EXPECT_GE(told, 3);
}

TEST(RendezvousTcp, AnotherSizeFailsAllAndNamesBoth) {
  const std::string address = FreeAddress();
  const auto results = Meet({OptionsFor(address, 0, 3, seconds(10)),
                             OptionsFor(address, 1, 4, seconds(10))});
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(result, "rank 1 (127.0.0.1:") &&
                Says(result, "expects 4 ranks") &&
                Says(result, "(" + address + ") expects 3"))
        << result.status().ToString();
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
    ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    char byte;
    EXPECT_LE(Receive(*dropped, &byte, 1), 0) << "dropped without a word";
  }
  const auto other = Meet({OptionsFor(address, 1, 2, seconds(10))});
  ranks.join();
  EXPECT_TRUE(other[0].ok()) << other[0].status().ToString();
  EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
}

TEST(RendezvousTcp, ARankThatLeavesAfterTheCardsFailsAll) {
  const std::string address = FreeAddress();
  std::vector<Cards> results;
  std::thread ranks([&] {
    results = Meet({OptionsFor(address, 0, 3, seconds(10)),
                    OptionsFor(address, 1, 3, seconds(10))});
  });
  {
    rendezvous::FrameStream stream(ConnectWithPatience(address), 1 << 20);
    rendezvous::Join join;
    join.rank = 2;
    join.size = 3;
    join.token = "secret";
    stream.Queue(rendezvous::MakeFrame(rendezvous::FrameType::kJoin,
                                       rendezvous::EncodeJoin(join)));
    ASSERT_TRUE(stream.Flush());
    rendezvous::Frame frame;
    while (frame.type != rendezvous::FrameType::kCards) {
      pollfd ready = {stream.fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 5000), 1);
      const auto state = stream.Read(&frame);
      ASSERT_TRUE(state == rendezvous::FrameStream::State::kFrame ||
                  state == rendezvous::FrameStream::State::kWaiting);
    }
  }  // Gone, without an acknowledgement.
  ranks.join();
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(Says(result, "rank 2 (127.0.0.1:") &&
                Says(result, "left the rendezvous"))
        << result.status().ToString();
  }
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

TEST(RendezvousTcp, AHostThatIsNotRankZerosIsReported) {
  // TEST-NET-1 belongs to nobody.
  const auto results = Meet({OptionsFor("192.0.2.1:4000", 0, 2, seconds(10))});
  EXPECT_EQ(results[0].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(results[0], "192.0.2.1:4000") &&
              Says(results[0], "host that rank 0 runs on"))
      << results[0].status().ToString();
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
  rendezvous::Join join;
  join.rank = 1;
  join.size = 2;
  join.token = "t";
  join.card = "hi";
  const char expected[] =
      "GFRV\x01\0\x01\0\x17\0\0\0\0\0\0\0"
      "\x01\0\0\0\x02\0\0\0\x01\0\0\0t\0\0\0\0\x02\0\0\0hi";
  EXPECT_EQ(rendezvous::EncodeFrame(rendezvous::FrameType::kJoin,
                                    rendezvous::EncodeJoin(join)),
            std::string(expected, sizeof(expected) - 1));
}

TEST(RendezvousFrames, CutOrPaddedBodiesAreNotTaken) {
  rendezvous::Join join;
  join.rank = 3;
  join.size = 9;
  join.token = "t";
  join.card = "some card";
  const std::string body = rendezvous::EncodeJoin(join);
  const auto decoded = rendezvous::DecodeJoin(body);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->rank, 3u);
  EXPECT_EQ(decoded->card, "some card");
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(rendezvous::DecodeJoin(body.substr(0, bytes)).has_value());
  }
  EXPECT_FALSE(rendezvous::DecodeJoin(body + "x").has_value());
}

}  // namespace
}  // namespace gradientflow
