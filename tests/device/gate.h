#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

// How the threads of a FakeDevice wait. A mutex would order its holders in both
// directions, and a reference count the threads that drop it: either would hide
// from the thread sanitizer that two streams are not ordered.
namespace gradientflow::testing {

// Blocks one thread until another posts; only the post happens before the
// wait's end.
class Gate {
 public:
  Gate() { ::sem_init(&semaphore_, 0, 0); }
  ~Gate() { ::sem_destroy(&semaphore_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void Post() { ::sem_post(&semaphore_); }
  // Returns after any post, including old ones: check the condition again.
  void Wait() {
    while (::sem_wait(&semaphore_) != 0) {  // EINTR.
    }
  }

 private:
  sem_t semaphore_;
};

// A point in the work of a stream, passed once.
class Point {
 public:
  Point() = default;
  ~Point() {
    Node* list = head_.load(std::memory_order_acquire);
    if (list != Done()) Free(list);
  }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  bool done() const { return head_.load(std::memory_order_acquire) == Done(); }

  // Posts once: when the point is passed, or at once if it has been. The gate
  // must live until then.
  void WakeWhenDone(Gate* gate) {
    auto node = std::make_unique<Node>(Node{gate, nullptr});
    node->next = head_.load(std::memory_order_relaxed);
    do {
      if (node->next == Done()) return gate->Post();
      // Release only: waiting threads are not ordered among each other.
    } while (!head_.compare_exchange_weak(node->next, node.get(),
                                          std::memory_order_release,
                                          std::memory_order_relaxed));
    node.release();  // NOLINT: the list's now.
  }

  // The device's time when the point is passed. REQUIRES done().
  double seconds() const { return seconds_; }

  void Finish(double seconds = 0) {
    seconds_ = seconds;
    Node* list = head_.exchange(Done(), std::memory_order_acq_rel);
    for (Node* node = list; node != nullptr; node = node->next) {
      node->gate->Post();
    }
    Free(list);
  }

  // Blocks the calling thread until the point is passed.
  void Await() {
    Gate gate;
    WakeWhenDone(&gate);
    gate.Wait();  // The only post: nobody touches the gate after it.
    // The post may have been our own: this orders us after Finish().
    if (!done()) std::abort();
  }

 private:
  struct Node {
    Gate* gate;
    Node* next;
  };

  static Node* Done() {
    static Node done = {nullptr, nullptr};
    return &done;
  }
  static void Free(Node* list) {
    while (list != nullptr) delete std::exchange(list, list->next);
  }

  double seconds_ = 0;
  std::atomic<Node*> head_{nullptr};
};

}  // namespace gradientflow::testing
