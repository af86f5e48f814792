#include "transports/tcp/door.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "transports/tcp/addresses.h"

namespace gradientflow {
namespace {

using std::chrono::milliseconds;

constexpr Clock::Time kNow = milliseconds(1000);

// All are strangers, except the first `peers`.
struct Inside final : Door::Guests {
  bool full() const override { return sockets.size() >= most; }
  bool DropOldestStranger() override {
    if (sockets.size() <= peers) return false;
    sockets.erase(std::next(sockets.begin(), static_cast<long>(peers)));
    ++dropped;
    return true;
  }
  void Admit(Socket socket) override { sockets.push_back(std::move(socket)); }

  std::size_t most = 8;
  std::size_t peers = 0;
  std::size_t dropped = 0;
  std::list<Socket> sockets;
};

class Doors : public ::testing::Test {
 protected:
  Doors()
      : listener_(ListenOn(*SocketAddress::Parse("127.0.0.1:0"), 0).value()) {}

  void Knock(int times) {
    for (int i = 0; i < times; ++i) {
      outside_.push_back(StartConnect(LocalAddress(listener_), 0).value());
      pollfd ready = {outside_.back().fd(), POLLOUT, 0};
      EXPECT_EQ(::poll(&ready, 1, 5000), 1);
    }
  }
  bool AnybodyWaits() const {
    pollfd ready = {listener_.fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
  }

  const Socket listener_;
  std::vector<Socket> outside_;
  Inside inside_;
  Door door_;
};

TEST_F(Doors, OldestStrangersMakeRoomAndPeersStay) {
  inside_.peers = 2;
  Knock(40);
  while (AnybodyWaits()) door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.sockets.size(), inside_.most);
  EXPECT_EQ(inside_.dropped, 32U);
  EXPECT_EQ(door_.Trouble(), "");
  // Peers are not dropped for a stranger.
  inside_.peers = inside_.most;
  Knock(3);
  while (AnybodyWaits()) door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.sockets.size(), inside_.most);
  EXPECT_EQ(inside_.dropped, 32U);
}

TEST_F(Doors, TheLastDescriptorIsEnoughForTheLastThatKnocks) {
  inside_.most = 1000;
  Knock(2);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(listener_.fd());
  ::close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  door_.AcceptSome(listener_, kNow, &inside_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(inside_.sockets.size(), 2U);
  EXPECT_EQ(inside_.dropped, 0U);
}

TEST_F(Doors, NoDescriptorIsNoReasonToStopButToPause) {
  inside_.most = 1000;
  Knock(20);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(listener_.fd());
  ::close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  // One leaves and one enters; then those inside must be served.
  door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.sockets.size(), 3U);
  EXPECT_EQ(inside_.dropped, 1U);
  door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.dropped, 2U);
  EXPECT_EQ(door_.DescriptorOf(listener_, kNow), listener_.fd());
  // If nobody can be dropped, the door does not listen for a moment.
  inside_.peers = 3;
  door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.sockets.size(), 3U);
  EXPECT_EQ(door_.DescriptorOf(listener_, kNow), -1);
  EXPECT_EQ(door_.DescriptorOf(listener_, kNow + milliseconds(100)),
            listener_.fd());
  EXPECT_NE(door_.Trouble().find("accept: "), std::string::npos);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  while (AnybodyWaits()) door_.AcceptSome(listener_, kNow, &inside_);
  EXPECT_EQ(inside_.sockets.size(), 18U);
}

}  // namespace
}  // namespace gradientflow
