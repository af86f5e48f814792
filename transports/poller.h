#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// An epoll and an eventfd: the one place where the driving thread blocks.
// NOT thread-safe, except for Wake().
class Poller {
 public:
  class Target {
   public:
    virtual ~Target() = default;
    // `events` contains EPOLLIN, EPOLLOUT, EPOLLHUP and EPOLLERR. Returns
    // whether anything moved. May call Add(), Modify() and Remove().
    virtual bool OnEvents(std::uint64_t cookie, std::uint32_t events) = 0;
  };

  static Result<std::unique_ptr<Poller>> Create();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Registration is level-triggered. `target` must outlive it. The caller keeps
  // the descriptor and calls Remove() before closing it.
  Status Add(int fd, std::uint32_t events, Target* target,
             std::uint64_t cookie);
  Status Modify(int fd, std::uint32_t events, Target* target,
                std::uint64_t cookie);
  void Remove(int fd);

  // Dispatches the pending events. Blocks for the first event for up to
  // `timeout`; 0 means not at all. Returns whether any target moved anything.
  bool Poll(std::chrono::nanoseconds timeout);

  // Ends a blocking Poll(), the current or the next one. May be called on any
  // thread and is async-signal-safe.
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
