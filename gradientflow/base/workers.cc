#include "gradientflow/base/workers.h"

#include <system_error>
#include <utility>

#include "gradientflow/base/clock.h"

// One call, as the atomic words see it:
//
//   caller   sets part_, count_ and next_ = 0
//            state_ = kOpen, ++calls_: helpers wake and may enter
//            takes parts until none is left
//            state_ without kOpen: nobody enters any more
//            waits until state_ is 0
//
//   helper   sees that calls_ has grown
//            Enter(): state_ + 1
//            takes parts until none is left
//            Leave(): state_ - 1
//
// So the caller waits only for helpers that are in the middle of a part.
namespace gradientflow {
namespace {

constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;
constexpr int kLooksPerClock = 64;  // Reading the clock costs 20 ns or so.
constexpr std::size_t kWorthWaking = std::size_t{64} << 10;  // Elements.

}  // namespace

Workers::Workers(int threads, std::chrono::nanoseconds spin)
    : threads_(threads), spin_(spin) {}

Workers::~Workers() {
  stop_.store(true);
  calls_.fetch_add(1);
  calls_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

// With fewer helpers than wanted, or none, everything works; it takes longer.
void Workers::StartHelpers() {
  started_ = true;
  try {
    for (int i = 1; i < threads_; ++i) {
      helpers_.emplace_back([this] { Help(); });
    }
  } catch (const std::system_error&) {
  }
}

Status Workers::Run(std::size_t count, const Part& part) {
  if (threads_ < 2 || count < 2 || busy_.exchange(true)) {
    Status first;
    for (std::size_t i = 0; i < count; ++i) {
      Status status = part(i);
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
  if (!started_) StartHelpers();
  part_ = &part;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  state_.store(kOpen);
  calls_.fetch_add(1);
  calls_.notify_all();
  TakeParts();
  state_.fetch_and(~kOpen);
  while (const std::uint32_t inside = state_.load()) Wait(state_, inside);
  Status first;
  {
    MutexLock lock(error_mutex_);
    std::swap(first, error_);
  }
  busy_.store(false);
  return first;
}

void Workers::Help() {
  std::uint32_t seen = 0;
  while (!stop_.load()) {
    const std::uint32_t calls = calls_.load();
    if (calls == seen) {
      Wait(calls_, seen);
      continue;
    }
    seen = calls;
    if (!Enter()) continue;
    TakeParts();
    Leave();
  }
}

// Returns whether the call is still open. If it is, the helper is inside.
bool Workers::Enter() {
  std::uint32_t state = state_.load();
  while ((state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

void Workers::Leave() {
  if (state_.fetch_sub(1) == 1) state_.notify_one();
}

void Workers::TakeParts() {
  for (;;) {
    const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    Status status = (*part_)(i);
    if (status.ok()) continue;
    MutexLock lock(error_mutex_);
    if (error_.ok()) error_ = std::move(status);
  }
}

// Returns once *word is no longer `seen`; may return early.
void Workers::Wait(const std::atomic<std::uint32_t>& word,
                   std::uint32_t seen) const {
  if (spin_ > std::chrono::nanoseconds(0)) {
    const SteadyClock clock;
    const Clock::Time until = clock.Now() + spin_;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        if (word.load() != seen) return;
      }
      std::this_thread::yield();
    } while (clock.Now() < until);
  }
  word.wait(seen);
}

Status RunPass(Workers* workers, std::size_t parts, std::size_t elements,
               const Workers::Part& part) {
  if (workers != nullptr && elements >= kWorthWaking) {
    return workers->Run(parts, part);
  }
  for (std::size_t i = 0; i < parts; ++i) GF_RETURN_IF_ERROR(part(i));
  return {};
}

}  // namespace gradientflow
