#pragma once

#include <mutex>

// Clang's thread-safety annotations, which the clang build checks and other
// compilers ignore, and a mutex that carries them: clang does not see
// std::mutex.
#if defined(__clang__)
#define GF_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GF_THREAD_ANNOTATION(x)
#endif
#define GF_CAPABILITY(x) GF_THREAD_ANNOTATION(capability(x))
#define GF_SCOPED_CAPABILITY GF_THREAD_ANNOTATION(scoped_lockable)
#define GF_GUARDED_BY(x) GF_THREAD_ANNOTATION(guarded_by(x))
#define GF_REQUIRES(...) GF_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define GF_ACQUIRE(...) GF_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GF_RELEASE(...) GF_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GF_TRY_ACQUIRE(...) \
  GF_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GF_EXCLUDES(...) GF_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GF_NO_THREAD_SAFETY_ANALYSIS \
  GF_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace gradientflow {

class GF_CAPABILITY("mutex") Mutex {
 public:
  void Lock() GF_ACQUIRE() { mutex_.lock(); }
  void Unlock() GF_RELEASE() { mutex_.unlock(); }
  // Names for std::condition_variable_any.
  void lock() GF_ACQUIRE() { mutex_.lock(); }      // NOLINT: std's name.
  void unlock() GF_RELEASE() { mutex_.unlock(); }  // NOLINT: std's name.

 private:
  std::mutex mutex_;
};

class GF_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GF_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() GF_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace gradientflow
