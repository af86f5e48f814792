#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace gradientflow {

// Sleeps until FutexWake(word), for at most `timeout`. Does not sleep if *word
// is not `seen`. May return early. May be called on any thread.
inline void FutexWait(std::atomic<std::uint32_t>* word, std::uint32_t seen,
                      std::chrono::nanoseconds timeout) {
  const timespec limit = {static_cast<time_t>(timeout.count() / 1000000000),
                          static_cast<long>(timeout.count() % 1000000000)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

// Ends all FutexWait(word) calls of this process. Does not read *word, which
// may be gone; a thread that sleeps on new data at that address wakes up and
// looks again.
inline void FutexWake(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace gradientflow
