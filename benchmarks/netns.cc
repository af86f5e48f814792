#include "benchmarks/netns.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMaxHosts = 250;

Status SystemError(StatusCode code, const std::string& what) {
  return Status(code, StrCat(what, ": ", std::strerror(errno)));
}

int OpenOwnNamespace() {
  return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

// Runs a command in the namespace `fd`. Words are separated by blanks.
Status RunIn(int fd, const std::string& command) {
  const pid_t pid = fork();
  if (pid < 0) return SystemError(StatusCode::kInternal, "fork");
  if (pid == 0) {
    if (setns(fd, CLONE_NEWNET) != 0) _exit(126);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status();
  const bool missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
  return Status(StatusCode::kFailedPrecondition,
                StrCat("shaped links: \"", command, "\" ",
                       missing ? "not found: install iproute2" : "failed"));
}

// A token bucket that a TCP stream fills to the rate: room for two of the
// 64 KiB units in which TCP hands packets over, or half a millisecond; and at
// most 10 ms of queue, as a switch port has.
std::string Shaper(const std::string& interface, double gbps) {
  const auto rate_kbit = static_cast<long>(std::lround(gbps * 1e6));
  const auto burst_bytes =
      std::max(131072L, std::lround(gbps * 1e9 / 8 * 0.0005));
  return StrCat("tc qdisc add dev ", interface, " root tbf rate ", rate_kbit,
                "kbit burst ", burst_bytes, " latency 10ms");
}

Status RunAll(int fd, const std::vector<std::string>& commands) {
  for (const std::string& command : commands) {
    GF_RETURN_IF_ERROR(RunIn(fd, command));
  }
  return Status();
}

Status SetUpHost(int bridge, int host_fd, int host,
                 const LinkSettings& settings) {
  const std::string port = StrCat("port", host);
  GF_RETURN_IF_ERROR(
      RunAll(bridge, {StrCat("ip link add ", port, " mtu ", settings.mtu,
                             " type veth peer name eth0 mtu ", settings.mtu,
                             " netns /proc/", getpid(), "/fd/", host_fd),
                      StrCat("ip link set ", port, " master bridge0 up"),
                      Shaper(port, settings.gbps)}));
  return RunAll(
      host_fd,
      {"ip link set lo up",
       StrCat("ip address add ", LinkedHosts::Address(host), "/24 dev eth0"),
       "ip link set eth0 up", Shaper("eth0", settings.gbps)});
}

}  // namespace

LinkedHosts::LinkedHosts(LinkedHosts&& other) noexcept
    : namespaces_(std::move(other.namespaces_)) {
  other.namespaces_.clear();
}

LinkedHosts::~LinkedHosts() {
  for (const int fd : namespaces_) close(fd);
}

std::string LinkedHosts::Address(int host) {
  return StrCat("10.77.0.", host + 1);
}

Result<LinkedHosts> LinkedHosts::Create(int hosts,
                                        const LinkSettings& settings) {
  if (hosts < 1 || hosts > kMaxHosts || !(settings.gbps >= 0.001) ||
      settings.gbps > 1000 || settings.mtu < 576 || settings.mtu > 65535) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("shaped links: expected 1 to ", kMaxHosts,
                         " hosts, 0.001 to 1000 Gb/s, MTU 576 to 65535, got ",
                         hosts, ", ", settings.gbps, ", ", settings.mtu));
  }
  const int home = OpenOwnNamespace();
  if (home < 0) {
    return SystemError(StatusCode::kFailedPrecondition, "/proc/self/ns/net");
  }
  LinkedHosts made;
  Status status;
  for (int i = 0; i <= hosts && status.ok(); ++i) {
    if (unshare(CLONE_NEWNET) != 0) {
      status = SystemError(StatusCode::kFailedPrecondition,
                           "shaped links need root (network namespaces)");
      break;
    }
    const int fd = OpenOwnNamespace();
    if (fd < 0) status = SystemError(StatusCode::kInternal, "namespace");
    if (fd >= 0) made.namespaces_.push_back(fd);
  }
  if (setns(home, CLONE_NEWNET) != 0 && status.ok()) {
    status = SystemError(StatusCode::kInternal, "return from a namespace");
  }
  close(home);
  GF_RETURN_IF_ERROR(status);
  const int bridge = made.namespaces_[0];
  GF_RETURN_IF_ERROR(RunIn(bridge, "ip link add bridge0 type bridge"));
  GF_RETURN_IF_ERROR(RunIn(bridge, "ip link set bridge0 up"));
  for (int host = 0; host < hosts; ++host) {
    GF_RETURN_IF_ERROR(
        SetUpHost(bridge, made.namespaces_[static_cast<std::size_t>(host) + 1],
                  host, settings));
  }
  return made;
}

Status LinkedHosts::Enter(int host) const {
  const auto index = static_cast<std::size_t>(host) + 1;
  if (host < 0 || index >= namespaces_.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("shaped links: no host ", host));
  }
  if (setns(namespaces_[index], CLONE_NEWNET) == 0) return Status();
  return SystemError(StatusCode::kInternal, StrCat("enter host ", host));
}

}  // namespace gradientflow::benchmarks
