#include "tests/faults/processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::faults {
namespace {

timespec ToTimespec(std::int64_t ns) {
  ns = std::max<std::int64_t>(ns, 0);
  return {static_cast<time_t>(ns / 1000000000),
          static_cast<long>(ns % 1000000000)};
}

}  // namespace

Result<std::string> LocalRendezvous() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && bind(fd, generic, length) == 0 &&
                     getsockname(fd, generic, &length) == 0;
  const Status status(StatusCode::kInternal,
                      StrCat("bind to 127.0.0.1: ", std::strerror(errno)));
  if (fd >= 0) close(fd);
  if (!found) return status;
  return StrCat("127.0.0.1:", ntohs(address.sin_port));
}

Processes::Processes(int ranks, const std::function<int(int rank)>& rank_main) {
  std::fflush(nullptr);  // Else every child would print it again.
  const pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) {
      std::perror("fork");
      std::abort();
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(EXIT_FAILURE);
      setpgid(0, group_);
      const int code = rank_main(rank);
      std::fflush(nullptr);
      _exit(code);
    }
    if (group_ == 0) group_ = pid;
    setpgid(pid, group_);  // Whoever comes first.
    Child child;
    child.pid = pid;
    child.pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    children_.push_back(child);
  }
}

Processes::~Processes() {
  for (std::size_t r = 0; r < children_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (!ended(rank)) {
      Signal(rank, SIGKILL);
      while (waitpid(children_[r].pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    close(children_[r].pidfd);
  }
}

void Processes::Signal(int rank, int signal) {
  if (!children_[rank].reaped) kill(children_[rank].pid, signal);
}

bool Processes::WaitFor(int rank, std::int64_t deadline_ns) {
  Child& child = children_[rank];
  while (!child.reaped) {
    const std::int64_t left = deadline_ns - NowNs();
    pollfd ready = {child.pidfd, POLLIN, 0};
    const timespec limit = ToTimespec(left);
    if (ppoll(&ready, 1, &limit, nullptr) > 0) {
      child.reaped = waitpid(child.pid, &child.wait_status, 0) == child.pid;
    } else if (left <= 0) {
      return false;
    }
  }
  return true;
}

bool Processes::AnyLeft() const { return kill(-group_, 0) == 0; }

}  // namespace gradientflow::faults
