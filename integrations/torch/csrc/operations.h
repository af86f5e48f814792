#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "group.h"
#include "work.h"

namespace gft {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The longest time-out that both chrono's nanoseconds and the library can hold.
constexpr std::chrono::milliseconds kLongestTimeout =
    std::chrono::hours(24 * 365);

// The operations of one group, in the order in which this rank calls them:
// begins each as a Work, numbers it, gives it its time-out, and gathers those
// that torch wants as one. Thread-safe.
//
// What the operations do is in files of their own: backend_reduce.h,
// backend_move.h, backend_all_to_all.h, backend_messages.h and
// backend_monitored.h.
class Operations {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // How profilers and error texts name an operation.
  struct Kind {
    c10d::OpType type;
    const char* title;
    std::string detail = {};  // "SUM", "root 2".
  };

  Operations(std::shared_ptr<Group> group, Milliseconds timeout)
      : group_(std::move(group)) {
    SetTimeout(timeout);
  }

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  // The time-out of operations that have none of their own.
  Milliseconds timeout() const { return Milliseconds(timeout_ms_.load()); }
  void SetTimeout(Milliseconds timeout);
  // How many have taken a number.
  uint64_t sequence() const { return sequence_.load(); }
  // No operation begins from here on. Returns whether this is the first time.
  bool Close() { return !closed_.exchange(true); }

  // `timeout` is that of the call, or unset for the group's. `counts` says
  // whether the operation takes a number. Throws after Close().
  c10::intrusive_ptr<Work> Begin(const Kind& kind, Milliseconds timeout,
                                 Tensors inputs, Tensors results,
                                 bool counts = true);
  // Every operation that a user may wait for ends with this, which returns it.
  WorkPtr Add(WorkPtr work);
  // What is added in between is one work.
  void StartCoalescing();
  WorkPtr EndCoalescing();

 private:
  const std::shared_ptr<Group> group_;
  std::atomic<int64_t> timeout_ms_{0};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> coalescing_{false};
  std::mutex mutex_;
  std::vector<WorkPtr> coalesced_;  // With mutex_.
};

// Commits a work when it is destroyed, even if an exception ends its
// construction.
class Making {
 public:
  explicit Making(c10::intrusive_ptr<Work> work) : work_(std::move(work)) {}
  ~Making() {
    if (work_) work_->Commit();
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;
  Work* operator->() const { return work_.get(); }
  Work& operator*() const { return *work_; }
  WorkPtr Commit() {
    work_->Commit();
    return std::exchange(work_, nullptr);
  }

 private:
  c10::intrusive_ptr<Work> work_;
};

}  // namespace gft
