#include "benchmarks/allreduce/group.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kPollMs = 200;
constexpr int kStartMs = 120000;
constexpr int kReplyMs = 300000;
constexpr int kGoodbyeMs = 5000;

Status SystemError(const std::string& what) {
  return Status(StatusCode::kInternal,
                StrCat(what, ": ", std::strerror(errno)));
}

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(path, ": too long for a socket's path"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool SendLine(int fd, std::string line) {
  line += '\n';
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n =
        send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

// A line without its end if `buffer` holds one.
bool TakeLine(std::string& buffer, std::string& line) {
  const std::size_t end = buffer.find('\n');
  if (end == std::string::npos) return false;
  line = buffer.substr(0, end);
  buffer.erase(0, end + 1);
  return true;
}

// Returns false at the end of the stream.
bool ReadSome(int fd, std::string& buffer) {
  char bytes[4096];
  ssize_t n = -1;
  do {
    n = read(fd, bytes, sizeof(bytes));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  buffer.append(bytes, static_cast<std::size_t>(n));
  return true;
}

void CloseAllBut(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned first = STDERR_FILENO + 1;
  for (const int fd : keep) {
    const auto kept = static_cast<unsigned>(fd);
    if (kept > first) close_range(first, kept - 1, 0);
    first = kept + 1;
  }
  close_range(first, ~0U, 0);
}

Result<pid_t> Spawn(const Program& program) {
  std::fflush(nullptr);  // Else the child would print it again.
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork");
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  CloseAllBut(program.keep);
  const int status = program.main();
  std::fflush(nullptr);
  _exit(status);
}

Result<int> Listen(const std::string& path) {
  const auto address = Address(path);
  if (!address.ok()) return address.status();
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SystemError("socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value());
  if (bind(fd, generic, sizeof(sockaddr_un)) == 0 && listen(fd, 64) == 0) {
    return fd;
  }
  const Status why = SystemError(path);
  close(fd);
  return why;
}

}  // namespace

std::string SocketPath(const std::string& folder, const std::string& name) {
  return StrCat(folder, "/", name);
}

Result<std::unique_ptr<Group>> Group::Start(
    const std::string& folder, const std::string& name, int ranks,
    const std::vector<Program>& programs) {
  std::unique_ptr<Group> group(new Group(name));
  const Result<int> listener = Listen(SocketPath(folder, name));
  if (!listener.ok()) return listener.status();
  Status status;
  for (const Program& program : programs) {
    const Result<pid_t> pid = Spawn(program);
    if (!pid.ok()) {
      status = pid.status();
      break;
    }
    group->pids_.push_back(pid.value());
  }
  if (status.ok()) status = group->Accept(listener.value(), ranks);
  close(listener.value());
  if (!status.ok()) return status;
  return group;
}

bool Group::AnyEnded() {
  bool ended = false;
  std::erase_if(pids_, [&](pid_t pid) {
    const bool gone = waitpid(pid, nullptr, WNOHANG) == pid;
    ended |= gone;
    return gone;
  });
  return ended;
}

Status Group::Accept(int listener, int ranks) {
  for (int waited_ms = 0; waited_ms < kStartMs;) {
    if (static_cast<int>(connections_.size()) == ranks) {
      buffers_.resize(connections_.size());
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        Result<std::string> hello = ReadLine(connections_[i], buffers_[i]);
        if (!hello.ok()) return hello.status();
        const Result<Outcome> ready = DecodeOutcome(hello.value());
        if (!ready.ok()) {
          return Status(ready.status().code(),
                        StrCat(name_, ": ", ready.status().message()));
        }
      }
      return Status();
    }
    pollfd ready{listener, POLLIN, 0};
    if (poll(&ready, 1, kPollMs) > 0) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) connections_.push_back(fd);
      continue;
    }
    waited_ms += kPollMs;
    if (AnyEnded()) {
      return Status(StatusCode::kUnavailable,
                    StrCat(name_, ": a process ended before it was ready"));
    }
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(name_, ": ", connections_.size(), " of ", ranks,
                       " ranks came within ", kStartMs / 1000, " s"));
}

Result<std::string> Group::ReadLine(int connection, std::string& buffer) {
  std::string line;
  while (!TakeLine(buffer, line)) {
    pollfd ready{connection, POLLIN, 0};
    const int count = poll(&ready, 1, kReplyMs);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat(name_, ": a rank did not answer within ",
                           kReplyMs / 1000, " s"));
    }
    if (!ReadSome(connection, buffer)) {
      return Status(StatusCode::kUnavailable,
                    StrCat(name_, ": a rank's process has ended"));
    }
  }
  return line;
}

Result<Outcome> Group::Run(const Batch& batch) {
  for (const int connection : connections_) {
    if (!SendLine(connection, Encode(batch))) {
      return Status(StatusCode::kUnavailable,
                    StrCat(name_, ": a rank's process has ended"));
    }
  }
  Outcome all;
  Status failed;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Result<std::string> line = ReadLine(connections_[i], buffers_[i]);
    if (!line.ok()) return line.status();
    const Result<Outcome> outcome = DecodeOutcome(line.value());
    if (!outcome.ok()) {
      failed = Status(outcome.status().code(),
                      StrCat(name_, ": ", outcome.status().message()));
      continue;
    }
    all.seconds = std::max(all.seconds, outcome.value().seconds);
    all.wrong += outcome.value().wrong;
  }
  if (!failed.ok()) return failed;
  return all;
}

Group::~Group() {
  for (const int connection : connections_) {
    shutdown(connection, SHUT_WR);  // The end of their work.
  }
  // A rank's socket ends with its process.
  for (const int connection : connections_) {
    char byte = 0;
    pollfd ready{connection, POLLIN, 0};
    if (poll(&ready, 1, kGoodbyeMs) > 0 && read(connection, &byte, 1) < 0) {
      continue;
    }
    close(connection);
  }
  // A launcher ends soon after its ranks, and cleans up behind them.
  for (int waited = 0; !pids_.empty() && waited < kGoodbyeMs; waited += 10) {
    AnyEnded();
    if (!pids_.empty()) poll(nullptr, 0, 10);
  }
  for (const pid_t pid : pids_) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

int Serve(const std::string& path,
          const std::function<Result<std::unique_ptr<Worker>>()>& make) {
  const auto address = Address(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!address.ok() || fd < 0 ||
      connect(fd, reinterpret_cast<const sockaddr*>(&address.value()),
              sizeof(sockaddr_un)) != 0) {
    return EXIT_FAILURE;
  }
  Result<std::unique_ptr<Worker>> worker = make();
  if (!worker.ok()) {
    SendLine(fd, Encode(Result<Outcome>(worker.status())));
    return EXIT_FAILURE;
  }
  SendLine(fd, Encode(Result<Outcome>(Outcome())));
  std::string buffer;
  std::string line;
  for (;;) {
    while (!TakeLine(buffer, line)) {
      if (!ReadSome(fd, buffer)) return EXIT_SUCCESS;
    }
    const Result<Batch> batch = DecodeBatch(line);
    const Result<Outcome> outcome = batch.ok()
                                        ? worker.value()->Run(batch.value())
                                        : Result<Outcome>(batch.status());
    if (!SendLine(fd, Encode(outcome))) return EXIT_FAILURE;
  }
}

}  // namespace gradientflow::benchmarks
