#include <gtest/gtest.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/tcp_pair.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/socket.h"

// Rank 0 accepts lanes of rank 1, which has two.
namespace gradientflow {
namespace {

const Bits256 kSecret = HmacSha256("a key", "");

class Incoming : public ::testing::Test {
 protected:
  // Connects, and proves to be that lane. Returns rank 1's end.
  Socket Open(std::uint32_t lane, std::uint32_t dial) {
    tcp_test::Connection pair = *tcp_test::MakeConnection("127.0.0.1:0");
    const int fd = pair.other.fd();
    lanes_.Admit(std::move(pair.other));
    LaneHello hello;
    hello.from = 1;
    hello.lane = lane;
    hello.lanes = 2;
    hello.dial = dial;
    hello.nonce = RandomBits().value();
    Say(pair.one, fd, hello);
    EXPECT_TRUE(tcp_test::WaitFor(pair.one, POLLIN));
    HelloReader reader;
    EXPECT_EQ(reader.Read(pair.one), HelloReader::State::kComplete);
    const LaneHello welcome = reader.Take().value();
    EXPECT_TRUE(IsProven(welcome, kSecret, hello.nonce));
    hello.kind = LaneHello::Kind::kConfirm;
    hello.proof = ProofOf(hello, kSecret, welcome.nonce);
    Say(pair.one, fd, hello);
    return std::move(pair.one);
  }
  void Say(const Socket& from, int fd, const LaneHello& hello) {
    ASSERT_TRUE(WriteHello(from, hello).ok());
    pollfd ready = {fd, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    ASSERT_TRUE(lanes_.OnReady(fd).ok());
  }
  static bool IsOpen(const Socket& socket) {
    pollfd ready = {socket.fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 0;
  }

  ManualClock clock_;
  IncomingLanes lanes_{{0, kSecret, {0, 2}, 64}, clock_};
};

TEST_F(Incoming, LanesOfOneDialAreALink) {
  const Socket first = Open(1, 1);
  EXPECT_EQ(lanes_.FindComplete(), -1);
  const Socket second = Open(0, 1);
  EXPECT_EQ(lanes_.FindComplete(), 1);
  EXPECT_EQ(lanes_.TakeLanes(1).size(), 2U);
}

// The peer has begun again, and closes the lanes from before; that news may
// arrive after the new lanes.
TEST_F(Incoming, LanesOfTwoDialsMakeNoLink) {
  const Socket old = Open(0, 1);
  const Socket first = Open(1, 2);
  EXPECT_EQ(lanes_.FindComplete(), -1);
  EXPECT_FALSE(IsOpen(old));
  const Socket late = Open(0, 1);
  EXPECT_FALSE(IsOpen(late));
  EXPECT_EQ(lanes_.FindComplete(), -1);
  const Socket second = Open(0, 2);
  EXPECT_EQ(lanes_.FindComplete(), 1);
  EXPECT_TRUE(IsOpen(first));
}

TEST_F(Incoming, LanesFromBeforeStayOutWhenAllHaveBeenDropped) {
  const Socket dropped = Open(0, 2);
  lanes_.Expect(1, 2);
  const Socket late = Open(1, 1);
  EXPECT_FALSE(IsOpen(late));
}

// However many ranks are expected.
TEST(Strangers, HoldABoundedNumberOfDescriptors) {
  const ManualClock clock;
  IncomingLanes lanes({0, kSecret, std::vector<int>(512, 2), 64}, clock);
  std::list<tcp_test::Connection> pairs;
  int held = 0;
  for (; !lanes.full() && held < 600; ++held) {
    pairs.push_back(*tcp_test::MakeConnection("127.0.0.1:0"));
    lanes.Admit(std::move(pairs.back().other));
  }
  EXPECT_GE(held, 64);
  EXPECT_LE(held, 128);
}

}  // namespace
}  // namespace gradientflow
