#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// epoll and an eventfd: the one place where the driving thread blocks.
// NOT thread-safe but for Wake().
class Poller {
 public:
  class Target {
   public:
    virtual ~Target() = default;
    // `events`: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR. Returns whether
    // anything moved. May Add, Modify and Remove.
    virtual bool OnEvents(std::uint64_t cookie, std::uint32_t events) = 0;
  };

  static Result<std::unique_ptr<Poller>> Create();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Level-triggered. `target` must outlive the registration. The caller keeps
  // the descriptor, and Remove()s it before it closes it.
  Status Add(int fd, std::uint32_t events, Target* target,
             std::uint64_t cookie);
  Status Modify(int fd, std::uint32_t events, Target* target,
                std::uint64_t cookie);
  void Remove(int fd);

  // Dispatches what is pending; blocks up to `timeout` for the first event (0:
  // not at all). Returns whether any target moved anything.
  bool Poll(std::chrono::nanoseconds timeout);

  // Any thread, async-signal-safe: ends a Poll() that blocks, now or next.
  void Wake();

 private:
  struct Registration;
  Poller(Fd epoll_fd, Fd wake_fd);

  const Fd epoll_fd_;
  const Fd wake_fd_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradientflow
