#include "transports/poller.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0); }
  ~Pipe() {
    CloseRead();
    ::close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void Put() { EXPECT_EQ(::write(ends[1], "x", 1), 1); }
  void CloseRead() {
    if (ends[0] >= 0) ::close(ends[0]);
    ends[0] = -1;
  }
  int in() const { return ends[0]; }
  int ends[2] = {-1, -1};
};

struct Target final : Poller::Target {
  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override {
    seen.emplace_back(cookie, events);
    return react ? react(cookie) : true;
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> seen;
  std::function<bool(std::uint64_t cookie)> react;
};

class PollerTest : public ::testing::Test {
 protected:
  bool Poll() { return poller_->Poll(nanoseconds(0)); }
  std::unique_ptr<Poller> poller_ = Poller::Create().value();
  Target target_;
};

TEST_F(PollerTest, DispatchesWhatIsPendingWithItsCookie) {
  Pipe one, two;
  ASSERT_TRUE(poller_->Add(one.in(), EPOLLIN, &target_, 7).ok());
  ASSERT_TRUE(poller_->Add(two.in(), EPOLLIN, &target_, 8).ok());
  EXPECT_FALSE(Poll());
  two.Put();
  EXPECT_TRUE(Poll());
  ASSERT_EQ(target_.seen.size(), 1u);
  EXPECT_EQ(target_.seen[0].first, 8u);
  EXPECT_TRUE((target_.seen[0].second & EPOLLIN) != 0);
  EXPECT_TRUE(Poll()) << "level-triggered: not read, so told again";
  target_.react = [](std::uint64_t) { return false; };
  EXPECT_FALSE(Poll()) << "no target moved anything";
}

TEST_F(PollerTest, ModifyChangesEventsAndCookie) {
  Pipe pipe;
  ASSERT_TRUE(poller_->Add(pipe.ends[1], EPOLLIN, &target_, 1).ok());
  EXPECT_FALSE(Poll());
  ASSERT_TRUE(poller_->Modify(pipe.ends[1], EPOLLOUT, &target_, 2).ok());
  EXPECT_TRUE(Poll());
  EXPECT_EQ(target_.seen.back().first, 2u);
}

TEST_F(PollerTest, BadCallsAreReported) {
  Pipe pipe;
  EXPECT_FALSE(poller_->Add(-1, EPOLLIN, &target_, 0).ok());
  EXPECT_FALSE(poller_->Add(pipe.in(), EPOLLIN, nullptr, 0).ok());
  EXPECT_FALSE(poller_->Modify(pipe.in(), EPOLLIN, &target_, 0).ok());
  ASSERT_TRUE(poller_->Add(pipe.in(), EPOLLIN, &target_, 0).ok());
  EXPECT_FALSE(poller_->Add(pipe.in(), EPOLLIN, &target_, 0).ok());
  poller_->Remove(pipe.in());
  poller_->Remove(pipe.in());
  poller_->Remove(12345);
  EXPECT_FALSE(poller_->Modify(pipe.in(), EPOLLIN, &target_, 0).ok());
}

TEST_F(PollerTest, ATargetMayRemoveItselfAndOthersWhileBothArePending) {
  Pipe one, two;
  ASSERT_TRUE(poller_->Add(one.in(), EPOLLIN, &target_, 1).ok());
  ASSERT_TRUE(poller_->Add(two.in(), EPOLLIN, &target_, 2).ok());
  one.Put();
  two.Put();
  target_.react = [&](std::uint64_t) {
    poller_->Remove(one.in());
    poller_->Remove(two.in());
    return true;
  };
  EXPECT_TRUE(Poll());
  EXPECT_EQ(target_.seen.size(), 1u) << "the other was removed by the first";
  EXPECT_FALSE(Poll());
}

TEST_F(PollerTest, AnEventOfAClosedDescriptorDoesNotReachItsSuccessor) {
  auto one = std::make_unique<Pipe>();
  auto two = std::make_unique<Pipe>();
  Target successor;
  ASSERT_TRUE(poller_->Add(one->in(), EPOLLIN, &target_, 1).ok());
  ASSERT_TRUE(poller_->Add(two->in(), EPOLLIN, &target_, 2).ok());
  one->Put();
  two->Put();
  std::vector<std::unique_ptr<Pipe>> later;
  bool reused = false;
  target_.react = [&](std::uint64_t cookie) {
    Pipe& other = cookie == 1 ? *two : *one;
    const int number = other.in();
    poller_->Remove(number);
    other.CloseRead();
    // A new descriptor gets the lowest free number, which is the other's.
    later.push_back(std::make_unique<Pipe>());
    reused = later.back()->in() == number;
    EXPECT_TRUE(poller_->Add(later.back()->in(), EPOLLIN, &successor, 3).ok());
    return true;
  };
  EXPECT_TRUE(Poll());
  EXPECT_TRUE(reused) << "nothing was tested";
  EXPECT_EQ(target_.seen.size(), 1u);
  EXPECT_TRUE(successor.seen.empty());
}

TEST_F(PollerTest, ATargetMayAddManyOthers) {
  Pipe first;
  ASSERT_TRUE(poller_->Add(first.in(), EPOLLIN, &target_, 0).ok());
  first.Put();
  std::vector<std::unique_ptr<Pipe>> more;
  target_.react = [&](std::uint64_t cookie) {
    if (cookie != 0) return true;
    poller_->Remove(first.in());
    for (std::uint64_t i = 1; i <= 200; ++i) {
      more.push_back(std::make_unique<Pipe>());
      more.back()->Put();
      EXPECT_TRUE(poller_->Add(more.back()->in(), EPOLLIN, &target_, i).ok());
    }
    return true;
  };
  EXPECT_TRUE(Poll());
  // More than are dispatched at once: each gets its turn.
  std::vector<int> times(201);
  for (int i = 0; i < 20; ++i) Poll();
  for (const auto& [cookie, events] : target_.seen) ++times[cookie];
  for (std::size_t i = 0; i <= 200; ++i) EXPECT_GT(times[i], 0) << i;
}

TEST_F(PollerTest, WakeEndsAPollThatBlocks) {
  std::thread waker([&] { poller_->Wake(); });
  EXPECT_FALSE(poller_->Poll(seconds(30)));
  waker.join();
}

TEST_F(PollerTest, WakeIsKeptForTheNextPollThatBlocks) {
  poller_->Wake();
  EXPECT_FALSE(Poll()) << "does not block, so takes nothing back";
  EXPECT_FALSE(poller_->Poll(seconds(30)));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(poller_->Poll(milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(19))
      << "one wish ends one wait";
}

}  // namespace
}  // namespace gradientflow
