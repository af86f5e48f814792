#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "gradientflow/base/secret.h"
#include "tests/transports/tcp_job.h"
#include "tests/transports/tcp_pair.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/routes.h"
#include "transports/tcp/socket.h"

// Connections that pretend to be a lane of the job. None may become one.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tcp_test::Job;
using tcp_test::kSecret;
using Kind = LaneHello::Kind;

LaneHello HelloOf(Kind kind, std::uint32_t lane) {
  LaneHello hello;
  hello.kind = kind;
  hello.from = 1;
  hello.to = 0;
  hello.lane = lane;
  hello.lanes = 2;
  hello.dial = 1;
  hello.nonce = RandomBits().value();
  return hello;
}

// Waits for a whole hello; nothing if the connection ends.
std::optional<LaneHello> ReadHello(const Socket& socket) {
  HelloReader reader;
  for (;;) {
    switch (reader.Read(socket)) {
      case HelloReader::State::kComplete:
        return reader.Take().value();
      case HelloReader::State::kClosed:
        return std::nullopt;
      case HelloReader::State::kWaiting:
        if (!tcp_test::WaitFor(socket, POLLIN)) return std::nullopt;
    }
  }
}

bool IsClosed(const Socket& socket) {
  char byte = 0;
  return tcp_test::WaitFor(socket, POLLIN) && Receive(socket, &byte, 1) <= 0;
}

// Rank 0 connects; the test speaks to its port.
class ForgedLanes : public ::testing::Test {
 protected:
  ForgedLanes() : job_(2) { EXPECT_TRUE(job_.Listen()); }
  void Start(milliseconds patience) {
    zero_ = std::thread([this, patience] { job_.Connect(0, patience); });
  }
  Socket Dial() const {
    const SocketAddress zero = SplitRated(job_.addresses[0]).value()[0].address;
    Socket socket = StartConnect(zero, 0).value();
    EXPECT_TRUE(tcp_test::WaitFor(socket, POLLOUT));
    return socket;
  }
  // Speaks as rank 1 to the end; `forge` changes what confirms.
  bool BecomesALane(const std::function<void(const LaneHello& welcome,
                                             LaneHello* confirm)>& forge) {
    const Socket socket = Dial();
    LaneHello hello = HelloOf(Kind::kHello, 0);
    if (!WriteHello(socket, hello).ok()) return false;
    const auto welcome = ReadHello(socket);
    if (!welcome) return false;
    EXPECT_TRUE(IsProven(*welcome, kSecret, hello.nonce));
    hello.kind = Kind::kConfirm;
    hello.proof = ProofOf(hello, kSecret, welcome->nonce);
    forge(*welcome, &hello);
    return WriteHello(socket, hello).ok() && !IsClosed(socket);
  }

  Job job_;
  std::thread zero_;
};

TEST_F(ForgedLanes, AreClosedAndTheRightOnesTaken) {
  Start(seconds(60));
  std::mt19937 random(7);
  const Bits256 another = HmacSha256("another session", "");
  const auto forged = [&](const auto& forge) {
    EXPECT_FALSE(BecomesALane(forge));
  };
  forged([&](const LaneHello& welcome, LaneHello* confirm) {
    confirm->proof = ProofOf(*confirm, another, welcome.nonce);
  });
  // A proof for an earlier challenge, for another kind, for another lane.
  forged([](const LaneHello&, LaneHello* confirm) {
    confirm->proof = ProofOf(*confirm, kSecret, RandomBits().value());
  });
  forged([](const LaneHello& welcome, LaneHello* confirm) {
    LaneHello hello = *confirm;
    hello.kind = Kind::kHello;
    confirm->proof = ProofOf(hello, kSecret, welcome.nonce);
  });
  forged([](const LaneHello& welcome, LaneHello* confirm) {
    confirm->lane = 1;
    confirm->proof = ProofOf(*confirm, kSecret, welcome.nonce);
  });
  // What rank 0 has said itself.
  forged([](const LaneHello& welcome, LaneHello* confirm) {
    confirm->proof = welcome.proof;
  });
  forged(
      [](const LaneHello& welcome, LaneHello* confirm) { *confirm = welcome; });
  forged([](const LaneHello&, LaneHello* confirm) { confirm->proof = {}; });
  for (int i = 0; i < 1000; ++i) {
    forged([&](const LaneHello&, LaneHello* confirm) {
      const std::size_t bit = random() % (8 * sizeof(Bits256));
      Bits256& changed = i % 2 == 0 ? confirm->proof : confirm->nonce;
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
    });
  }
  job_.Connect(1, seconds(60));
  zero_.join();
  for (const auto& rank : job_.ranks) {
    ASSERT_TRUE(rank->links->ok()) << rank->links->status().ToString();
  }
  job_.ExpectAllTalk();
}

// All bytes that a sniffer has seen of a lane that was taken.
TEST_F(ForgedLanes, AReplayedHandshakeIsNotTaken) {
  Start(seconds(1));
  const Socket lane = Dial();
  const LaneHello hello = HelloOf(Kind::kHello, 0);
  ASSERT_TRUE(WriteHello(lane, hello).ok());
  const auto welcome = ReadHello(lane);
  ASSERT_TRUE(welcome.has_value());
  LaneHello confirm = hello;
  confirm.kind = Kind::kConfirm;
  confirm.proof = ProofOf(confirm, kSecret, welcome->nonce);
  ASSERT_TRUE(WriteHello(lane, confirm).ok());
  for (const std::uint32_t to_lane : {0U, 1U}) {
    const Socket replay = Dial();
    LaneHello again = hello;
    again.lane = to_lane;
    ASSERT_TRUE(WriteHello(replay, again).ok());
    ASSERT_TRUE(ReadHello(replay).has_value());
    again = confirm;
    again.lane = to_lane;
    ASSERT_TRUE(WriteHello(replay, again).ok());
    EXPECT_TRUE(IsClosed(replay)) << to_lane;
  }
  zero_.join();
  EXPECT_EQ(job_.ranks[0]->links->status().code(),
            StatusCode::kDeadlineExceeded);
}

// Rank 1 looks for rank 0, and finds a process that knows no secret.
TEST(FalsePeer, GetsNoConfirmation) {
  Job job(2);
  ASSERT_TRUE(job.Listen());
  const Socket listener =
      ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value();
  job.addresses[0] = LocalAddress(listener).ToString();
  std::thread one([&] { job.Connect(1, milliseconds(700)); });
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(tcp_test::WaitFor(listener, POLLIN));
    const Socket socket = Accept(listener).value();
    const auto hello = ReadHello(socket);
    ASSERT_TRUE(hello.has_value());
    EXPECT_EQ(hello->proof, Bits256{}) << "proves nothing to a stranger";
    LaneHello welcome = *hello;
    welcome.kind = Kind::kWelcome;
    std::swap(welcome.from, welcome.to);
    if (i % 3 == 1) welcome.proof = hello->nonce;
    if (i % 3 == 2) {
      welcome.proof = ProofOf(welcome, HmacSha256("guess", ""), hello->nonce);
    }
    ASSERT_TRUE(WriteHello(socket, welcome).ok());
    EXPECT_TRUE(IsClosed(socket));
  }
  one.join();
  const Status seen = job.ranks[1]->links->status();
  EXPECT_EQ(seen.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(seen.message().find("seen another process"), std::string::npos)
      << seen.message();
}

// The example in gradientflow/docs/wire_format.md.
TEST(LaneHelloFormat, TheDocumentedExampleHolds) {
  Bits256 secret;
  Bits256 of_rank_2;
  Bits256 of_rank_0;
  secret.fill(std::byte{0x5E});
  of_rank_2.fill(std::byte{0x11});
  of_rank_0.fill(std::byte{0x22});
  const LaneHello hello{Kind::kHello, 2, 0, 1, 2, 1, of_rank_2, {}};
  const auto bytes = EncodeLaneHello(hello);
  const std::string text(reinterpret_cast<const char*>(bytes.data()),
                         bytes.size());
  EXPECT_EQ(Hex(text.substr(0, 38)),
            "474668656c6c6f0a040000000100000002000000000000000100000002000000"
            "010000001111");
  const LaneHello welcome{Kind::kWelcome, 0, 2, 1, 2, 1, of_rank_0, {}};
  EXPECT_EQ(Hex(View(ProofOf(welcome, secret, of_rank_2))),
            "faa17b1b32b2ca343635808c0a1fcc3e6f8a043a750f3982477f5cdee48f6e43");
  LaneHello confirm = hello;
  confirm.kind = Kind::kConfirm;
  EXPECT_EQ(Hex(View(ProofOf(confirm, secret, of_rank_0))),
            "b61bb77b52b78963a65a42314d3481d0e3478bbc88d60a5e199ef87efd52eb5a");
  EXPECT_EQ(DecodeLaneHello(bytes).value().nonce, of_rank_2);
}

}  // namespace
}  // namespace gradientflow
