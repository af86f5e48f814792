#include "transports/tcp/ready_set.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "transports/tcp/socket.h"

namespace gradientflow {

Result<ReadySet> ReadySet::Create() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return SocketError(StatusCode::kInternal, "epoll_create1", errno);
  }
  return ReadySet(std::move(epoll));
}

// The kernel takes a descriptor out when it is closed, so only the kernel knows
// whether a number stands for the connection of the last call. It is asked by
// adding each descriptor again.
Status ReadySet::Watch(const std::vector<pollfd>& wanted) {
  std::map<int, short> watched;
  for (const pollfd& entry : wanted) {
    if (entry.fd < 0) continue;
    watched[entry.fd] = entry.events;
    const auto before = watched_.find(entry.fd);
    epoll_event event = {};
    // The flags of poll() and epoll have the same values.
    event.events = static_cast<std::uint32_t>(entry.events);
    event.data.fd = entry.fd;
    if (::epoll_ctl(fd(), EPOLL_CTL_ADD, entry.fd, &event) == 0) continue;
    if (errno == EEXIST &&
        ((before != watched_.end() && before->second == entry.events) ||
         ::epoll_ctl(fd(), EPOLL_CTL_MOD, entry.fd, &event) == 0)) {
      continue;
    }
    return SocketError(StatusCode::kInternal, "epoll_ctl", errno);
  }
  watched_ = std::move(watched);
  return Status();
}

void ReadySet::Forget(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

}  // namespace gradientflow
