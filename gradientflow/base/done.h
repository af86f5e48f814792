#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gradientflow/base/pollable.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// The completion of an operation. It runs exactly once, when the operation has
// given back every buffer that it was lent, and says how the operation ended. A
// plain value: the hot path allocates nothing for it. It never runs inside the
// call that took it. It runs on the thread that drives the fabric, and must
// neither block nor throw.
struct Done {
  void (*run)(void* self, std::uint64_t cookie, std::uint32_t flags,
              const Status& status) = nullptr;
  void* self = nullptr;
  std::uint64_t cookie = 0;

  // `flags` are those that the message carried (see transports/wire.h); 0 for a
  // send.
  void operator()(const Status& status, std::uint32_t flags = 0) const {
    if (run != nullptr) run(self, cookie, flags, status);
  }
};

// The operations that have ended and whose Done has yet to run, in order. Their
// owner runs them when it is polled. Once the queue has had its greatest length
// it allocates nothing. NOT thread-safe.
class DoneQueue final : public Pollable {
 public:
  void Add(Done done, std::uint32_t flags, Status status) {
    ended_.push_back({done, flags, std::move(status)});
  }
  // Runs all of them, also those that a Done adds meanwhile. Returns whether
  // there was any.
  bool Poll() override {
    if (empty()) return false;
    while (!empty()) {
      const Ended ended = std::move(ended_[next_++]);
      ended.done(ended.status, ended.flags);
    }
    ended_.clear();
    next_ = 0;
    return true;
  }
  // Forgets all that have not run, also within Poll().
  void Clear() {
    ended_.clear();
    next_ = 0;
  }
  bool empty() const { return next_ == ended_.size(); }
  std::size_t size() const { return ended_.size() - next_; }
  void Reserve(std::size_t count) { ended_.reserve(count); }

 private:
  struct Ended {
    Done done;
    std::uint32_t flags;
    Status status;
  };
  std::vector<Ended> ended_;
  std::size_t next_ = 0;  // Of ended_: the first that has not run.
};

}  // namespace gradientflow
