#include "gradientflow/communicator/progress.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Something is always in flight and never moves. Block() ignores its time-out,
// so a thread that relies on the time-out instead of a wake-up hangs.
class Sleepy : public Progress::Work, private Pollable {
 public:
  std::span<Pollable* const> pollables() const override { return pollables_; }
  bool Poll() override {
    EXPECT_FALSE(inside_.exchange(true)) << "two threads drive";
    ++polls;
    if (on_poll) on_poll();
    inside_ = false;
    return false;
  }
  bool Pending() const override { return true; }
  void Block(nanoseconds, nanoseconds) override {
    std::unique_lock lock(mutex_);
    if (!woken_.wait_for(lock, seconds(30), [this] { return wakes_ > 0; })) {
      ADD_FAILURE() << "slept on";
    }
    wakes_ = 0;
  }
  void Wake() override {
    const std::lock_guard lock(mutex_);
    ++wakes_;
    woken_.notify_all();
  }
  void Tick() override {}

  std::atomic<int> polls{0};
  std::function<void()> on_poll;  // Set under the baton.

 private:
  std::atomic<bool> inside_{false};
  const std::vector<Pollable*> pollables_{this};
  std::mutex mutex_;
  std::condition_variable woken_;
  int wakes_ = 0;
};

class ProgressTest : public ::testing::Test {
 protected:
  ~ProgressTest() override {
    for (std::thread& thread : threads_) thread.join();
  }
  template <typename F>
  void Run(F function) {
    threads_.emplace_back(function);
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Sleepy work_;
  SteadyClock clock_;
  Completions completions_;
  Progress progress_{work_, clock_, nanoseconds(0), completions_};

 private:
  std::vector<std::thread> threads_;
};

TEST_F(ProgressTest, ADriverIsWokenByWhatOthersDo) {
  constexpr int kTasks = 2000;
  int done = 0;  // Guarded by the baton.
  Run([&] {
    for (int i = 0; i < kTasks; ++i) progress_.Do([&] { ++done; });
  });
  progress_.Drive([&] { return done == kTasks; });
  EXPECT_EQ(done, kTasks);
}

TEST_F(ProgressTest, AsManyDriveAsWait) {
  constexpr int kThreads = 5;
  constexpr int kTurns = 300;
  int turn = 0;
  for (int t = 0; t < kThreads; ++t) {
    Run([&, t] {
      // Each thread waits for its turn, which the thread before it gives.
      for (int i = 0; i < kTurns; ++i) {
        progress_.Drive([&] { return turn == i * kThreads + t; });
        progress_.Do([&] { ++turn; });
      }
    });
  }
  Join();
  EXPECT_EQ(turn, kThreads * kTurns);
}

TEST_F(ProgressTest, CompletionsRunWithoutTheBatonAndAreToldOfBeforeDone) {
  constexpr int kTasks = 500;
  std::atomic<int> ran{0};
  int told = 0;  // Guarded by the baton.
  Run([&] {
    for (int i = 0; i < kTasks; ++i) {
      progress_.Do([&] {
        completions_.Add({[&] {
                            // Needs the baton.
                            progress_.Do([&] { ++ran; });
                          },
                          [&] { ++told; }});
      });
      progress_.Drive([&, i] { return told > i; });
    }
  });
  progress_.Drive([&] { return told == kTasks; });
  Join();
  EXPECT_EQ(ran, kTasks);
}

// A completion may hold locks that the callers want.
TEST_F(ProgressTest, WhoOnlyPassesByTellsNobodyOfTheDriversCalls) {
  constexpr int kTasks = 500;
  // The progress thread may still run the last ones when the test is over.
  static std::atomic<int> told{0};
  told = 0;
  bool done = false;  // Guarded by the baton.
  thread_local bool passes_by = false;
  progress_.Do([&] {
    work_.on_poll = [&] {
      completions_.Add({[&] {
                          EXPECT_FALSE(passes_by);
                          ++told;
                        },
                        [] {}});
    };
  });
  Run([&] {
    passes_by = true;
    while (told < kTasks) progress_.Do([] {});
    progress_.Do([&] { done = true; });
  });
  progress_.Drive([&] { return done; });
  Join();
  progress_.Do([&] { work_.on_poll = nullptr; });
}

TEST_F(ProgressTest, ACompletionOfTheProgressThreadWakesTheDriver) {
  constexpr int kTasks = 300;
  for (int i = 0; i < kTasks; ++i) {
    std::atomic<bool> running{false};
    bool told = false;
    // The progress thread detects it, if this thread is not back by then.
    progress_.Do([&] {
      completions_.Add({[&] { running = true; }, [&] { told = true; }});
    });
    progress_.Notify();
    progress_.Drive([&] { return told; });
    EXPECT_TRUE(running);
  }
}

TEST_F(ProgressTest, DeadlinesEndTheWaitOfDriversAndSleepers) {
  std::atomic<int> late{0};
  bool over = false;
  Run([&] { progress_.Drive([&] { return over; }); });
  for (int t = 0; t < 3; ++t) {
    Run([&] {
      late += !progress_.DriveUntil([] { return false; },
                                    clock_.Now() + milliseconds(20));
    });
  }
  // A thread that drives at its deadline needs something that wakes it.
  while (late < 3) {
    progress_.Do([] {});
    std::this_thread::yield();
  }
  progress_.Do([&] { over = true; });
  Join();
  EXPECT_EQ(late, 3);
}

// Time stands still: no tick detects what was overlooked.
class StoppedClock final : public Clock {
 public:
  Time Now() const override { return seconds(1); }
};

// Like an engine with gradients, it knows only after a poll what is in flight.
class Unpolled final : public Progress::Work, private Pollable {
 public:
  std::span<Pollable* const> pollables() const override { return pollables_; }
  bool Poll() override {
    if (told.exchange(false)) seen.set_value();
    return false;
  }
  bool Pending() const override {
    if (const auto hook = std::exchange(on_pending, nullptr)) hook();
    return false;
  }
  void Block(nanoseconds, nanoseconds) override {}
  void Wake() override {}
  void Tick() override {}

  std::atomic<bool> told{false};
  std::promise<void> seen;
  mutable std::function<void()> on_pending;  // Once. Set under the baton.

 private:
  const std::vector<Pollable*> pollables_{this};
};

TEST(ProgressHandoverTest, WhatIsToldAsADriverLeavesIsSeen) {
  for (int i = 0; i < 100; ++i) {
    Unpolled work;
    StoppedClock clock;
    Completions completions;
    Progress progress(work, clock, nanoseconds(0), completions);
    progress.Drive([&] {
      work.on_pending = [&] {
        work.told = true;
        progress.Notify();
      };
      return true;
    });
    ASSERT_EQ(work.seen.get_future().wait_for(seconds(20)),
              std::future_status::ready)
        << "after " << i << " rounds";
  }
}

}  // namespace
}  // namespace gradientflow
