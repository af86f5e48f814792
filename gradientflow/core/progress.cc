#include "gradientflow/core/progress.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kTick(100);

void FutexWait(std::atomic<std::uint32_t>* word, std::uint32_t seen,
               nanoseconds timeout) {
  const timespec limit = {static_cast<time_t>(timeout.count() / 1000000000),
                          static_cast<long>(timeout.count() % 1000000000)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void FutexWake(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Progress::Progress(Work& work, const Clock& clock, nanoseconds spin)
    : work_(work), clock_(clock), spin_(spin), last_tick_(clock.Now()) {
  thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  stop_.store(true);
  signal_.fetch_add(1);
  WakeParked();
  work_.Wake();
  thread_.join();
}

void Progress::WakeParked() {
  signal_.fetch_add(1);
  if (parked_.load()) FutexWake(&signal_);
}

void Progress::Notify() {
  hint_.store(true);
  signal_.fetch_add(1);
  if (blocked_.load()) {
    work_.Wake();
  } else if (parked_.load()) {
    FutexWake(&signal_);
  }
}

void Progress::Take() {
  callers_.fetch_add(1);
  // The progress thread may hold the baton in Block(); it lets go on waking.
  if (blocked_.load()) work_.Wake();
  baton_.Lock();
}

void Progress::Release() {
  callers_.fetch_sub(1);
  baton_.Unlock();
  if (hint_.load()) WakeParked();
}

void Progress::Do(const std::function<void()>& task) {
  Take();
  task();
  Release();
}

void Progress::Drive(const std::function<bool()>& done) {
  Take();
  Clock::Time idle_since{};
  while (!done()) {
    Step(&idle_since, 1);
    if (callers_.load() > 1) {
      baton_.Unlock();
      std::this_thread::yield();
      baton_.Lock();
    }
  }
  if (!work_.Pending()) hint_.store(false);
  Release();
}

// One round of polling; blocks when the patience for that is over.
void Progress::Step(Clock::Time* idle_since, int callers) {
  const std::uint32_t seen = signal_.load();
  if (work_.Poll()) {
    *idle_since = Clock::Time{};
    return;
  }
  const Clock::Time now = clock_.Now();
  if (now - last_tick_ >= kTick) {
    last_tick_ = now;
    work_.Tick();
  }
  if (*idle_since == Clock::Time{}) {
    *idle_since = now;
    std::this_thread::yield();
    return;
  }
  if (now - *idle_since < spin_) return;
  blocked_.store(true);
  // Whoever changed something before it saw `blocked_` changed this too.
  if (signal_.load() == seen && !stop_.load()) {
    work_.Block(callers_.load() > callers ? nanoseconds(milliseconds(1))
                                          : nanoseconds(kTick));
  }
  blocked_.store(false);
}

void Progress::Run() {
  while (!stop_.load()) {
    if (callers_.load() == 0 && hint_.load()) {
      baton_.Lock();
      RunWhilePending();
      baton_.Unlock();
    } else {
      Park();
    }
  }
}

void Progress::RunWhilePending() {
  Clock::Time idle_since{};
  while (!stop_.load() && callers_.load() == 0) {
    Step(&idle_since, 0);
    if (work_.Pending()) continue;
    hint_.store(false);
    // What was notified before that store is seen by this poll.
    work_.Poll();
    if (!work_.Pending()) return;
    hint_.store(true);
  }
}

void Progress::Park() {
  const std::uint32_t seen = signal_.load();
  parked_.store(true);
  const bool needed = callers_.load() == 0 && hint_.load();
  if (!needed && !stop_.load()) FutexWait(&signal_, seen, kTick);
  parked_.store(false);
  // Even with nothing in flight peers want to hear that this rank lives.
  if (callers_.load() > 0 || !baton_.TryLock()) return;
  if (clock_.Now() - last_tick_ >= kTick) {
    last_tick_ = clock_.Now();
    work_.Poll();
    work_.Tick();
  }
  if (work_.Pending()) hint_.store(true);
  baton_.Unlock();
}

}  // namespace gradientflow
