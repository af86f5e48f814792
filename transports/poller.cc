#include "transports/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <ctime>
#include <system_error>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

struct Poller::Registration {
  Target* target = nullptr;  // Null if not registered.
  std::uint64_t cookie = 0;
  // Differs between successive registrations of one descriptor number, so that
  // an event that was fetched for one is not given to the next.
  std::uint32_t generation = 0;
};

struct Poller::State {
  std::vector<Registration> by_fd;
};

namespace {

// Events that one Poll() handles; the rest stays for the next.
constexpr int kEventsAtOnce = 64;
// No descriptor has this number.
constexpr std::uint64_t kWakeKey = ~std::uint64_t{0};

std::uint64_t Key(int fd, std::uint32_t generation) {
  return (std::uint64_t{generation} << 32) | static_cast<std::uint32_t>(fd);
}

Status SystemError(const char* what, int error) {
  const bool scarce =
      error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC;
  return Status(scarce ? StatusCode::kResourceExhausted : StatusCode::kInternal,
                StrCat(what, ": ", std::generic_category().message(error)));
}

int Milliseconds(std::chrono::nanoseconds timeout) {
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(timeout);
  return static_cast<int>(std::clamp<std::int64_t>(whole.count(), 0, INT_MAX));
}

// While it lives, the calling thread's short sleeps end when they should: by
// default the kernel may add 50 us to each, which is longer than they are.
class PreciseTimer {
 public:
  explicit PreciseTimer(std::chrono::nanoseconds sleep) {
    constexpr std::size_t kNanoseconds = 1000;
    if (sleep >= std::chrono::milliseconds(1)) return;
    // -1 if this kernel does not tell.
    const int now = ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    if (now <= static_cast<int>(kNanoseconds)) return;
    if (::prctl(PR_SET_TIMERSLACK, kNanoseconds, 0UL, 0UL, 0UL) == 0) {
      before_ = static_cast<std::size_t>(now);
    }
  }
  ~PreciseTimer() {
    if (before_ > 0) {
      static_cast<void>(::prctl(PR_SET_TIMERSLACK, before_, 0UL, 0UL, 0UL));
    }
  }
  PreciseTimer(const PreciseTimer&) = delete;
  PreciseTimer& operator=(const PreciseTimer&) = delete;

 private:
  std::size_t before_ = 0;
};

// Waits like epoll_wait(), but to the nanosecond where the kernel can (since
// 5.11), because a thread that watches a device sleeps for less than a
// millisecond.
int WaitFor(int epoll_fd, epoll_event* events, std::chrono::nanoseconds time) {
#ifdef SYS_epoll_pwait2
  static_assert(sizeof(timespec) == 16, "the call takes 64-bit times");
  // Once the call is found missing or forbidden, it is not tried again.
  static std::atomic<bool> missing{false};
  if (time % std::chrono::milliseconds(1) != std::chrono::nanoseconds(0) &&
      !missing.load(std::memory_order_relaxed)) {
    const PreciseTimer precise(time);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
    const timespec limit = {
        static_cast<time_t>(seconds.count()),
        static_cast<long>((time - seconds).count())};  // NOLINT: timespec's.
    const auto count = ::syscall(SYS_epoll_pwait2, epoll_fd, events,
                                 kEventsAtOnce, &limit, nullptr, 0);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) {
      return static_cast<int>(count);
    }
    missing.store(true, std::memory_order_relaxed);
  }
#endif
  return ::epoll_wait(epoll_fd, events, kEventsAtOnce, Milliseconds(time));
}

}  // namespace

Result<std::unique_ptr<Poller>> Poller::Create() {
  Fd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return SystemError("epoll_create1", errno);
  Fd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return SystemError("eventfd", errno);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeKey;
  if (::epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, wake_fd.get(), &event) != 0) {
    return SystemError("epoll_ctl", errno);
  }
  return std::unique_ptr<Poller>(
      new Poller(std::move(epoll_fd), std::move(wake_fd)));
}

Poller::Poller(Fd epoll_fd, Fd wake_fd)
    : epoll_fd_(std::move(epoll_fd)),
      wake_fd_(std::move(wake_fd)),
      state_(std::make_unique<State>()) {}

Poller::~Poller() = default;

Status Poller::Add(int fd, std::uint32_t events, Target* target,
                   std::uint64_t cookie) {
  if (fd < 0 || target == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected an open descriptor and a target, seen ", fd,
                         target == nullptr ? " and none" : ""));
  }
  const auto slot = static_cast<std::size_t>(fd);
  if (slot >= state_->by_fd.size()) state_->by_fd.resize(slot + 1);
  Registration& entry = state_->by_fd[slot];
  epoll_event event = {};
  event.events = events;
  event.data.u64 = Key(fd, entry.generation + 1);
  if (::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError("epoll_ctl(add)", errno);
  }
  ++entry.generation;
  entry.target = target;
  entry.cookie = cookie;
  return Status();
}

Status Poller::Modify(int fd, std::uint32_t events, Target* target,
                      std::uint64_t cookie) {
  const auto slot = static_cast<std::size_t>(fd);
  if (fd < 0 || slot >= state_->by_fd.size() ||
      state_->by_fd[slot].target == nullptr || target == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("descriptor ", fd, " is not registered"));
  }
  Registration& entry = state_->by_fd[slot];
  epoll_event event = {};
  event.events = events;
  event.data.u64 = Key(fd, entry.generation);
  if (::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return SystemError("epoll_ctl(modify)", errno);
  }
  entry.target = target;
  entry.cookie = cookie;
  return Status();
}

void Poller::Remove(int fd) {
  const auto slot = static_cast<std::size_t>(fd);
  if (fd < 0 || slot >= state_->by_fd.size()) return;
  Registration& entry = state_->by_fd[slot];
  if (entry.target == nullptr) return;
  entry.target = nullptr;
  ++entry.generation;
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool Poller::Poll(std::chrono::nanoseconds timeout) {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = WaitFor(epoll_fd_.get(), events.data(), timeout);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (key == kWakeKey) {
      // Only a blocking call consumes the wish to wake up. A call that does not
      // block leaves it for the next one that does.
      std::uint64_t wishes = 0;
      if (timeout > std::chrono::nanoseconds(0) &&
          ::read(wake_fd_.get(), &wishes, sizeof(wishes)) < 0) {
        continue;  // EAGAIN: there is no wish to take back.
      }
      continue;
    }
    // Copied, because a target may add registrations, which moves the table.
    const Registration entry = state_->by_fd[key & 0xFFFFFFFF];
    if (entry.target == nullptr || entry.generation != key >> 32) continue;
    moved |= entry.target->OnEvents(entry.cookie, events[i].events);
  }
  return moved;
}

void Poller::Wake() {
  const std::uint64_t one = 1;
  // Async-signal-safe: the errno of the interrupted code is kept. A counter
  // that is full (EAGAIN) wakes the poller, too.
  const int saved = errno;
  while (::write(wake_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  errno = saved;
}

}  // namespace gradientflow
