#include "gradientflow/communicator/progress.h"

#include <algorithm>

// The thread that holds the baton drives: it polls the pollables of work_. The
// baton is taken in one of three ways:
//
//   DriveUntil()  a caller that waits. If another thread drives already, it
//                 sleeps until that thread finds its `done` true (kDone) or
//                 stops driving (kDrive); then it drives itself
//   Run()         the progress thread: drives while work is pending and no
//                 caller does (callers_ == 0); otherwise it is parked
//   Do()          takes the baton for one task; the driver gives way to it
//
// Notify() says that there is work. signal_ counts these calls and served_ is
// its value before a poll that left nothing pending, so hint() tells whether
// there may be work.
namespace gradientflow {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kTick(100);

// The values of Sleeper::word.
constexpr std::uint32_t kAsleep = 0;
constexpr std::uint32_t kDone = 1;
constexpr std::uint32_t kDrive = 2;

}  // namespace

Progress::Progress(Work& work, const Clock& clock, nanoseconds spin,
                   Completions& completions)
    : work_(work),
      clock_(clock),
      spin_(spin),
      completions_(completions),
      last_tick_(clock.Now()) {
  thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() { Stop(); }

void Progress::Stop() {
  if (!thread_.joinable()) return;
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
  signal_.fetch_add(1);
  if (blocked_.load()) {
    work_.Wake();
  } else if (parked_.load()) {
    FutexWake(&signal_);
  }
}

void Progress::Take() {
  // A thread in Block() would keep the baton, so it has to be woken.
  baton_.Take([this] {
    if (blocked_.load()) work_.Wake();
  });
}

void Progress::Release() {
  baton_.Release();
  Leave();
}

// One caller fewer waits, so the progress thread may have to go on.
void Progress::Leave() {
  callers_.fetch_sub(1);
  if (hint()) WakeParked();
}

// Notes whether the last poll left nothing in flight. What was announced since
// then still counts as work. A call that its caller drives is not announced, so
// most often there is nothing to find out.
void Progress::NoteIfServed() {
  if (served_.load() != polled_ && !work_.Pending()) served_.store(polled_);
}

void Progress::Do(const std::function<void()>& task) {
  callers_.fetch_add(1);
  Take();
  task();
  // A driver that gave way runs its completions itself, next: they may need
  // locks that this caller holds.
  if (!driven_) Complete(1);
  Release();
}

// Runs the completions that are due, without the baton. `callers` is how many
// of callers_ this thread counts for; it does not drive meanwhile.
void Progress::Complete(int callers) {
  while (completions_.any()) {
    const std::vector<Completions::Task> tasks = completions_.Take();
    const bool pending = work_.Pending();
    HandOver();
    callers_.fetch_sub(callers);
    baton_.Release();
    if (pending) WakeParked();
    for (const Completions::Task& task : tasks) task.tell();
    callers_.fetch_add(callers);
    Take();
    for (const Completions::Task& task : tasks) task.told();
  }
}

void Progress::Drive(const std::function<bool()>& done) {
  DriveUntil(done, Clock::Time::max());
}

bool Progress::DriveUntil(const std::function<bool()>& done,
                          Clock::Time deadline) {
  callers_.fetch_add(1);
  Take();
  Clock::Time idle_since{};
  bool over = false;
  while (!(over = done()) &&
         (deadline == Clock::Time::max() || clock_.Now() < deadline)) {
    if (driven_) {
      if (Sleep(done, deadline)) {
        Leave();
        return true;
      }
      Take();
      continue;
    }
    // Other threads may have changed something since the last round.
    WakeSleepers();
    Round(&idle_since);
    if (baton_.wanted() > 0) {
      driven_ = true;
      baton_.GiveWay();
      driven_ = false;
    }
    // Comes last, because another thread may drive by the time completions have
    // run.
    Complete(1);
  }
  Complete(1);
  WakeSleepers();
  HandOver();
  NoteIfServed();
  Release();
  return over;
}

// Returns whether `done` has returned true. If not, this thread may have to
// drive.
bool Progress::Sleep(const std::function<bool()>& done, Clock::Time deadline) {
  Sleeper self{&done};
  sleepers_.push_back(&self);
  baton_.Release();
  while (self.word.load() == kAsleep) {
    nanoseconds left = kTick;
    if (deadline != Clock::Time::max()) {
      left = std::min<nanoseconds>(left, deadline - clock_.Now());
    }
    if (left <= nanoseconds(0)) break;
    FutexWait(&self.word, kAsleep, left);
  }
  if (self.word.load() == kDone) return true;
  Take();
  std::erase(sleepers_, &self);
  const bool is_done = self.word.load() == kDone;
  baton_.Release();
  return is_done;
}

void Progress::WakeSleepers() {
  if (sleepers_.empty()) return;
  std::erase_if(sleepers_, [](Sleeper* sleeper) {
    if (!(*sleeper->done)()) return false;
    // From here on the sleeper may be gone.
    sleeper->word.store(kDone);
    FutexWake(&sleeper->word);
    return true;
  });
}

// This thread stops driving, so a sleeper takes over.
void Progress::HandOver() {
  if (driven_ || sleepers_.empty()) return;
  Sleeper* next = sleepers_.front();
  sleepers_.erase(sleepers_.begin());
  next->word.store(kDrive);
  FutexWake(&next->word);
}

// Polls everything once, even if the call that a thread waits for ends early in
// the round. Otherwise a Done might be left for the next round, when its owner
// may be gone, such as a session that closed meanwhile. Blocks when polling has
// found nothing for too long.
void Progress::Round(Clock::Time* idle_since) {
  polled_ = signal_.load();
  bool moved = false;
  for (Pollable* one : work_.pollables()) moved |= one->Poll();
  if (moved) {
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
  // A thread that changed something, or wanted the baton, before it could see
  // `blocked_` is noticed here.
  if (signal_.load() == polled_ && baton_.wanted() == 0 && !stop_.load()) {
    work_.Block(kTick, now - *idle_since);
  }
  blocked_.store(false);
}

void Progress::Run() {
  while (!stop_.load()) {
    if (callers_.load() == 0 && hint()) {
      Take();
      RunWhilePending();
      baton_.Release();
    } else {
      Park();
    }
  }
}

void Progress::RunWhilePending() {
  Clock::Time idle_since{};
  while (!stop_.load() && callers_.load() == 0) {
    Round(&idle_since);
    Complete(0);
    if (work_.Pending()) continue;
    served_.store(polled_);
    if (!hint()) return;
  }
}

void Progress::Park() {
  const std::uint32_t seen = signal_.load();
  parked_.store(true);
  const bool needed = callers_.load() == 0 && hint();
  if (!needed && !stop_.load()) FutexWait(&signal_, seen, kTick);
  parked_.store(false);
  // Even with nothing in flight, the peers have to hear that this rank is
  // alive.
  if (callers_.load() > 0 || !baton_.TryTake()) return;
  if (clock_.Now() - last_tick_ >= kTick) {
    last_tick_ = clock_.Now();
    for (Pollable* one : work_.pollables()) one->Poll();
    work_.Tick();
    Complete(0);
  }
  if (work_.Pending()) signal_.fetch_add(1);
  baton_.Release();
}

}  // namespace gradientflow
