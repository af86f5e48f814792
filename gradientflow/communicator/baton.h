#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "gradientflow/base/mutex.h"
#include "gradientflow/communicator/futex.h"

namespace gradientflow {

// A mutex that can be handed over. A thread that releases an ordinary mutex and
// takes it again at once mostly gets it again, while the others sleep on.
class GF_CAPABILITY("mutex") Baton {
 public:
  // If another thread has the baton, runs `now_wanted` after wanted() counts
  // this thread and before it may sleep.
  template <typename F>
  void Take(F&& now_wanted) GF_ACQUIRE() {
    if (!mutex_.try_lock()) {
      wanted_.fetch_add(1);
      now_wanted();
      mutex_.lock();
      wanted_.fetch_sub(1);
    }
    // A thread that gives way says so before it releases the mutex.
    if (!giving_way_.load()) return;
    turns_.fetch_add(1);
    FutexWake(&turns_);
  }
  bool TryTake() GF_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void Release() GF_RELEASE() { mutex_.unlock(); }

  // Number of threads that wait in Take(). May be called on any thread.
  int wanted() const { return wanted_.load(); }

  // Lets another thread have the baton, and takes it again.
  void GiveWay() GF_REQUIRES(this) GF_NO_THREAD_SAFETY_ANALYSIS {
    const std::uint32_t seen = turns_.load();
    giving_way_.store(true);
    mutex_.unlock();
    // The thread that wanted the baton may have had it and released it already,
    // so the wait is limited.
    FutexWait(&turns_, seen, std::chrono::milliseconds(1));
    giving_way_.store(false);
    Take([] {});
  }

 private:
  std::mutex mutex_;
  std::atomic<int> wanted_{0};
  // Number of times it was taken from a thread that gave way.
  std::atomic<std::uint32_t> turns_{0};
  std::atomic<bool> giving_way_{false};
};

}  // namespace gradientflow
