#include "gradientflow/collectives/call_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/collectives/mailboxes.h"

namespace gradientflow {
namespace {

using std::chrono::seconds;

class CallQueueTest : public ::testing::Test {
 protected:
  // A call of so many segments.
  Operation* Push(std::uint64_t segments) {
    auto operation = std::make_unique<Operation>();
    operation->plan.segments = segments;
    operation->done = {&CallQueueTest::OnEnd, this, ++pushed_};
    Operation* const at = operation.get();
    queue_.Push(std::move(operation));
    return at;
  }
  static void OnEnd(void* self, std::uint64_t cookie, std::uint32_t,
                    const Status& status) {
    auto& test = *static_cast<CallQueueTest*>(self);
    test.ended_.push_back(std::to_string(cookie) + " " + status.message());
  }

  CallQueue queue_;
  std::uint64_t pushed_ = 0;
  std::vector<std::string> ended_;
};

TEST_F(CallQueueTest, NumbersItsCallsFromOneOn) {
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(Push(1)->sequence, 1U);
  EXPECT_EQ(Push(1)->sequence, 2U);
  EXPECT_EQ(queue_.calls(), 2U);
  EXPECT_EQ(queue_.front().sequence, 1U);
}

TEST_F(CallQueueTest, LaunchesAllPartsOfACallBeforeTheNext) {
  Operation* const first = Push(2);
  Operation* const empty = Push(0);
  Operation* const last = Push(1);
  EXPECT_EQ(queue_.FirstToLaunch(), first);
  ++first->launched;
  EXPECT_EQ(queue_.FirstToLaunch(), first);
  ++first->launched;
  EXPECT_EQ(queue_.FirstToLaunch(), last) << "the other one has no parts";
  ++last->launched;
  EXPECT_EQ(queue_.FirstToLaunch(), nullptr);
  EXPECT_EQ(empty->launched, 0U);
}

TEST_F(CallQueueTest, EndsCallsInTheirOrder) {
  Operation* const first = Push(2);
  Operation* const second = Push(1);
  second->finished = 1;
  EXPECT_EQ(queue_.TakeFinished(), nullptr) << "the first one has not ended";
  first->finished = 2;
  EXPECT_EQ(queue_.TakeFinished()->sequence, 1U);
  EXPECT_EQ(queue_.TakeFinished()->sequence, 2U);
  EXPECT_EQ(queue_.TakeFinished(), nullptr);
}

TEST_F(CallQueueTest, StandsSinceItsFirstCallLastMoved) {
  Operation* const first = Push(2);
  EXPECT_EQ(queue_.StandsSince(seconds(10)), seconds(10));
  EXPECT_EQ(queue_.StandsSince(seconds(20)), seconds(10));
  ++first->messages;
  EXPECT_EQ(queue_.StandsSince(seconds(30)), seconds(30));
  // The next call has made as little progress, but it is another one.
  Push(1)->messages = 1;
  first->finished = 2;
  EXPECT_NE(queue_.TakeFinished(), nullptr);
  EXPECT_EQ(queue_.StandsSince(seconds(50)), seconds(50));
}

TEST_F(CallQueueTest, FailsAllCallsWithTheVerdict) {
  Push(2);
  Push(1);
  DoneQueue due;
  queue_.FailAll(Status(StatusCode::kAborted, "enough"), &due);
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(ended_.empty()) << "it runs nothing itself";
  due.Poll();
  EXPECT_EQ(ended_, (std::vector<std::string>{"1 enough", "2 enough"}));
}

// No segment runs, so the oldest sync is the next one: a window of them fits.
TEST_F(CallQueueTest, ACallMayBeginAWindowOfSyncs) {
  constexpr std::uint64_t kWindow = kSyncSlots / kChannels / 2;
  Schedule schedule;
  EXPECT_TRUE(queue_.HasSlotsFor(schedule, kWindow));
  EXPECT_FALSE(queue_.HasSlotsFor(schedule, kWindow + 1));
  schedule.mailed = true;
  EXPECT_TRUE(queue_.HasSlotsFor(schedule, Mailboxes::kBoxes / 2));
  EXPECT_FALSE(queue_.HasSlotsFor(schedule, Mailboxes::kBoxes / 2 + 1));
  EXPECT_EQ(queue_.BeginSyncs(3), 1U);
  EXPECT_EQ(queue_.BeginSyncs(2), 4U);
}

}  // namespace
}  // namespace gradientflow
