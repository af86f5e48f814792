#include "transports/tcp/socket.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <system_error>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/told_sanitizer.h"

namespace gradientflow {
namespace {

// An idle connection to a machine that has vanished fails after idle + count *
// interval. (TCP_USER_TIMEOUT would also end a connection whose reader is
// merely paused. Silent peers are found by heartbeats.)
constexpr int kKeepIdleSeconds = 20;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepCount = 4;

bool SetOption(const Socket& socket, int level, int option, int value) {
  return ::setsockopt(socket.fd(), level, option, &value, sizeof(value)) == 0;
}

// Must precede connect() or listen(), which negotiate the window scale.
void SetBuffers(const Socket& socket, std::size_t bytes) {
  if (bytes == 0) return;
  const int size = static_cast<int>(std::min<std::size_t>(bytes, INT_MAX / 2));
  // The kernel clips to its limits: a smaller buffer is slower, but not wrong.
  SetOption(socket, SOL_SOCKET, SO_SNDBUF, size);
  SetOption(socket, SOL_SOCKET, SO_RCVBUF, size);
}

// Whether the kernel keeps messages of the network about the socket. While it
// does, such a message ends even an established connection.
void KeepNetworkErrors(const Socket& socket, bool keep) {
  const int on = keep ? 1 : 0;
  SetOption(socket, IPPROTO_IP, IP_RECVERR, on);
  SetOption(socket, IPPROTO_IPV6, IPV6_RECVERR, on);
}

Result<Socket> NewSocket(int family) {
  Socket socket(
      ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return SocketError(StatusCode::kUnavailable, "socket", errno);
  }
  return socket;
}

}  // namespace

std::string ErrorText(int error) {
  return std::generic_category().message(error);
}

Status SocketError(StatusCode code, std::string_view what, int error) {
  const bool scarce =
      error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  return Status(scarce ? StatusCode::kResourceExhausted : code,
                StrCat(what, ": ", ErrorText(error)));
}

Result<Socket> ListenOn(const SocketAddress& at, std::size_t buffer_bytes) {
  Result<Socket> made = NewSocket(at.family());
  if (!made.ok()) return made;
  const Socket& socket = made.value();
  SetBuffers(socket, buffer_bytes);
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket.fd(), at.data(), at.bytes()) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    const int error = errno;
    return SocketError(error == EADDRINUSE ? StatusCode::kFailedPrecondition
                                           : StatusCode::kUnavailable,
                       StrCat("cannot listen on ", at.ToString()), error);
  }
  return made;
}

Result<Socket> StartConnect(const SocketAddress& to, std::size_t buffer_bytes,
                            int* error) {
  Result<Socket> made = NewSocket(to.family());
  if (!made.ok()) return made;
  const Socket& socket = made.value();
  SetBuffers(socket, buffer_bytes);
  KeepNetworkErrors(socket, true);
  if (::connect(socket.fd(), to.data(), to.bytes()) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    const int why = errno;
    if (error != nullptr) *error = why;
    return SocketError(StatusCode::kUnavailable, to.ToString(), why);
  }
  return made;
}

int ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
    return errno;
  }
  if (error == 0) KeepNetworkErrors(socket, false);
  return error;
}

bool WasRefusedOnTheWay(const Socket& socket) {
  alignas(cmsghdr) char control[512];
  msghdr message = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket.fd(), &message, MSG_ERRQUEUE) < 0) return false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    const bool is_error =
        (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR) ||
        (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!is_error) continue;
    sock_extended_err error = {};
    std::memcpy(&error, CMSG_DATA(part), sizeof(error));
    if (error.ee_origin == SO_EE_ORIGIN_ICMP ||
        error.ee_origin == SO_EE_ORIGIN_ICMP6) {
      return true;
    }
  }
  return false;
}

Result<Socket> Accept(const Socket& listener) {
  Socket socket(
      ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) return socket;
  const Status why = SocketError(StatusCode::kUnavailable, "accept", errno);
  // All other errors concern only the connection that would have been accepted.
  if (why.code() == StatusCode::kResourceExhausted) return why;
  return socket;
}

// Without TCP_NODELAY small messages would wait, so its failure counts.
// Keep-alive is best effort.
Status PrepareConnection(const Socket& socket) {
  if (!SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1)) {
    return SocketError(StatusCode::kUnavailable, "setsockopt(TCP_NODELAY)",
                       errno);
  }
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  return Status();
}

Status SetCongestion(const Socket& socket, std::string_view name) {
  if (name.empty() ||
      ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                   static_cast<socklen_t>(name.size())) == 0) {
    return Status();
  }
  const int error = errno;
  const std::string_view file = error == EPERM
                                    ? "tcp_allowed_congestion_control"
                                    : "tcp_available_congestion_control";
  std::string known;
  std::getline(std::ifstream(StrCat("/proc/sys/net/ipv4/", file)), known);
  return Status(StatusCode::kInvalidArgument,
                StrCat("tcp_congestion: expected one of ", known, " (net.ipv4.",
                       file, "), seen ", name, ": ", ErrorText(error)));
}

SocketAddress LocalAddress(const Socket& socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&storage),
                    &bytes) != 0) {
    return SocketAddress();
  }
  return SocketAddress(storage, bytes);
}

SocketAddress PeerAddress(const Socket& socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  if (::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&storage),
                    &bytes) != 0) {
    return SocketAddress();
  }
  return SocketAddress(storage, bytes);
}

namespace {

// Calls `move` until no signal interrupts it.
template <typename Move>
std::int64_t Moved(const Move& move) {
  for (;;) {
    const ssize_t moved = move();
    if (moved >= 0) return moved;
    if (errno != EINTR) return -std::int64_t{errno};
  }
}

std::int64_t Receive(int fd, void* to, std::size_t bytes, int flags) {
  return Moved([=] { return ::recv(fd, to, bytes, MSG_DONTWAIT | flags); });
}

std::int64_t Send(int fd, const void* from, std::size_t bytes) {
  return Moved(
      [=] { return ::send(fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); });
}

msghdr MessageOf(std::span<const iovec> pieces) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

std::int64_t Receive(const Socket& socket, void* to, std::size_t bytes) {
  return Receive(socket.fd(), to, bytes, 0);
}

bool HasEnded(const Socket& socket) {
  std::byte next{};
  const std::int64_t got = Peek(socket, &next, 1);
  return got <= 0 && got != -EAGAIN && got != -EWOULDBLOCK;
}

std::int64_t Peek(const Socket& socket, void* to, std::size_t bytes) {
  return Receive(socket.fd(), to, bytes, MSG_PEEK);
}

std::int64_t Send(const Socket& socket, const void* from, std::size_t bytes) {
  return Send(socket.fd(), from, bytes);
}

// The kernel has less to do for a single piece that needs no msghdr.

std::int64_t ReceivePieces(int fd, std::span<const iovec> pieces) {
  return WithReceiveTold(pieces, [&] {
    const iovec& first = pieces.front();
    if (pieces.size() == 1) {
      return Receive(fd, first.iov_base, first.iov_len, 0);
    }
    msghdr message = MessageOf(pieces);
    return Moved([&] { return ::recvmsg(fd, &message, MSG_DONTWAIT); });
  });
}

std::int64_t SendPieces(int fd, std::span<const iovec> pieces) {
  return WithSendTold(pieces, [&] {
    const iovec& first = pieces.front();
    if (pieces.size() == 1) return Send(fd, first.iov_base, first.iov_len);
    const msghdr message = MessageOf(pieces);
    return Moved(
        [&] { return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
  });
}

}  // namespace gradientflow
