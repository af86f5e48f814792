#include "tests/gpu/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

Status SystemError(const char* what) {
  return Status(StatusCode::kInternal,
                StrCat(what, ": ", std::strerror(errno)));
}

struct Child {
  pid_t pid = -1;
  int read_fd = -1;  // -1 once the child has closed its end.
  std::string output;
};

void WriteAll(int fd, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(EXIT_FAILURE);
    written += static_cast<std::size_t>(n);
  }
}

// The first byte tells a result ('+') from an error ('-').
[[noreturn]] void ChildMain(
    int rank, pid_t parent, int write_fd,
    const std::function<Result<std::string>(int)>& rank_main) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  const Result<std::string> result = rank_main(rank);
  WriteAll(write_fd, result.ok() ? "+" + result.value()
                                 : "-" + result.status().ToString());
  std::fflush(nullptr);
  _exit(result.ok() ? EXIT_SUCCESS : EXIT_FAILURE);
}

Status Fork(int ranks, std::vector<Child>& children,
            const std::function<Result<std::string>(int)>& rank_main) {
  std::fflush(nullptr);  // Else every child would print it again.
  const pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) return SystemError("pipe");
    const pid_t pid = fork();
    if (pid < 0) return SystemError("fork");
    if (pid == 0) {
      for (const Child& other : children) close(other.read_fd);
      close(ends[0]);
      ChildMain(rank, parent, ends[1], rank_main);
    }
    close(ends[1]);
    children.push_back(Child{pid, ends[0], {}});
  }
  return Status();
}

// Reads once from a child that has written something. Returns whether its
// output is complete and is an error.
bool ReadFailed(Child& child) {
  char buffer[4096];
  const ssize_t n = read(child.read_fd, buffer, sizeof(buffer));
  if (n < 0 && errno == EINTR) return false;
  if (n > 0) {
    child.output.append(buffer, static_cast<std::size_t>(n));
    return false;
  }
  close(child.read_fd);
  child.read_fd = -1;
  return child.output.empty() || child.output[0] != '+';
}

// Reads until all have finished (returns -1) or one has failed (returns its
// rank).
int ReadAll(std::vector<Child>& children) {
  while (true) {
    std::vector<pollfd> fds;
    fds.reserve(children.size());
    for (const Child& child : children) {
      fds.push_back(pollfd{child.read_fd, POLLIN, 0});
    }
    bool open = false;
    for (const Child& child : children) open = open || child.read_fd >= 0;
    if (!open) return -1;
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0 && ReadFailed(children[i])) {
        return static_cast<int>(i);
      }
    }
  }
}

std::string HowItEnded(const Child& child, int wait_status) {
  if (!child.output.empty()) return child.output.substr(1);
  if (WIFSIGNALED(wait_status)) {
    return StrCat("killed by signal ", WTERMSIG(wait_status));
  }
  return StrCat("exited with code ", WEXITSTATUS(wait_status));
}

}  // namespace

Result<std::vector<std::string>> RunRanks(
    int ranks, const std::function<Result<std::string>(int rank)>& rank_main) {
  std::vector<Child> children;
  const Status forked = Fork(ranks, children, rank_main);
  const int failed = forked.ok() ? ReadAll(children) : 0;
  std::string why;
  for (std::size_t i = 0; i < children.size(); ++i) {
    Child& child = children[i];
    const bool culprit = static_cast<int>(i) == failed;
    // A failed child has closed its pipe and is about to end.
    if (failed >= 0 && !(culprit && forked.ok())) kill(child.pid, SIGKILL);
    int status = 0;
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (child.read_fd >= 0) close(child.read_fd);
    if (culprit) why = HowItEnded(child, status);
  }
  GF_RETURN_IF_ERROR(forked);
  if (failed >= 0) {
    return Status(StatusCode::kAborted, StrCat("rank ", failed, ": ", why));
  }
  std::vector<std::string> results;
  results.reserve(children.size());
  for (const Child& child : children) {
    results.push_back(child.output.substr(1));
  }
  return results;
}

}  // namespace gradientflow::testing
