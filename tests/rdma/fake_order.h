#pragma once

#include <cstddef>
#include <mutex>

#include "gradientflow/base/mutex.h"

// What the thread sanitizer is told about the fake devices. It must see a rank
// that touches memory which a device may still read or write. If it saw the
// fake's own lock, then each call of verbs would order everything before it,
// and it would find nothing. So it sees neither the lock nor what is done under
// it, but the bytes that are copied, as if each pair had a thread for them. As
// order it sees only what verbs promise:
//
//   posted -> copied -> completion queued -> that completion polled
//
// Without that sanitizer this is a mutex and memcpy().
namespace gradientflow::fake_verbs {

// Hides what the calling thread does from here on.
void HideBegin();
void HideEnd();

// What the calling thread did before Release() of an address happened before
// what comes after an Acquire() of it. Called while hidden.
void Release(const void* address);
void Acquire(const void* address);

// What a pair does, in its order, whichever thread really does it. Called while
// hidden.
class Order {
 public:
  Order();
  ~Order();
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  void Release(const void* address);
  void Acquire(const void* address);
  void Copy(void* to, const void* from, std::size_t bytes);

 private:
  void* fiber_ = nullptr;  // The sanitizer's.
};

// A mutex whose holder is hidden.
class GF_CAPABILITY("mutex") HiddenMutex {
 public:
  void lock() GF_ACQUIRE() {  // NOLINT: std's name.
    HideBegin();
    mutex_.lock();
  }
  void unlock() GF_RELEASE() {  // NOLINT: std's name.
    mutex_.unlock();
    HideEnd();
  }

 private:
  std::mutex mutex_;
};

class GF_SCOPED_CAPABILITY HiddenLock {
 public:
  explicit HiddenLock(HiddenMutex& mutex) GF_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~HiddenLock() GF_RELEASE() { mutex_.unlock(); }
  HiddenLock(const HiddenLock&) = delete;
  HiddenLock& operator=(const HiddenLock&) = delete;

 private:
  HiddenMutex& mutex_;
};

}  // namespace gradientflow::fake_verbs
