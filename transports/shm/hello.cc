#include "transports/shm/hello.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

// Hellos travel over Unix sockets. Their names are abstract, that is not in a
// file system. A peer proves its user by the credentials that the kernel
// reports, and hands over its arena as a file descriptor.
namespace gradientflow {
namespace {

static_assert(std::is_trivially_copyable_v<Hello>);

Status SocketError(StatusCode code, const char* what) {
  return Status(code,
                StrCat("local socket: ", what, ": ", std::strerror(errno)));
}

struct AbstractAddress {
  sockaddr_un address = {};
  socklen_t bytes = 0;
};

Result<AbstractAddress> Address(const std::string& name) {
  AbstractAddress to;
  // The leading zero byte makes the name abstract: there is no file.
  if (name.empty() || name.size() > sizeof(to.address.sun_path) - 1) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("shared-memory address: expected 1 to ",
                         sizeof(to.address.sun_path) - 1, " characters, seen ",
                         name.size()));
  }
  to.address.sun_family = AF_UNIX;
  std::memcpy(to.address.sun_path + 1, name.data(), name.size());
  to.bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return to;
}

Result<std::string> RandomName() {
  const Result<Bits256> random = RandomBits();
  if (!random.ok()) return random.status();
  return "gradientflow-" + Hex(View(random.value()).substr(0, 16));
}

// Takes ownership of every descriptor that came with the message.
std::vector<Fd> TakeDescriptors(msghdr* message) {
  std::vector<Fd> taken;
  for (cmsghdr* item = CMSG_FIRSTHDR(message); item != nullptr;
       item = CMSG_NXTHDR(message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

Result<ShmListener> ListenAbstract() {
  Result<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  const Result<AbstractAddress> at = Address(name.value());
  if (!at.ok()) return at.status();
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return SocketError(StatusCode::kResourceExhausted, "socket");
  }
  if (::bind(socket.get(),
             reinterpret_cast<const sockaddr*>(&at.value().address),
             at.value().bytes) != 0) {
    return SocketError(StatusCode::kInternal, "bind");
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    return SocketError(StatusCode::kInternal, "listen");
  }
  return ShmListener{std::move(socket), std::move(name).value()};
}

Result<Fd> ConnectAbstract(const std::string& name) {
  const Result<AbstractAddress> to = Address(name);
  if (!to.ok()) return to.status();
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return SocketError(StatusCode::kResourceExhausted, "socket");
  }
  if (::connect(socket.get(),
                reinterpret_cast<const sockaddr*>(&to.value().address),
                to.value().bytes) != 0) {
    if (errno == EAGAIN || errno == EINTR) return Fd();
    return SocketError(StatusCode::kUnavailable, "connect");
  }
  return socket;
}

Result<Fd> AcceptAbstract(const Fd& listener) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr,
                      SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid() && (errno == EMFILE || errno == ENFILE)) {
    return SocketError(StatusCode::kResourceExhausted, "accept");
  }
  return socket;
}

Status SendHello(const Fd& socket, const Hello& hello, int memory) {
  Hello copy = hello;
  iovec bytes = {&copy, sizeof(copy)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (memory >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &memory, sizeof(int));
  }
  // A fresh socket carries at most three hellos, so each fits in one piece.
  const ssize_t sent =
      ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof(hello))) {
    return SocketError(StatusCode::kUnavailable, "sendmsg");
  }
  return Status();
}

Result<ReceivedHello> ReceiveHello(const Fd& socket) {
  ReceivedHello received;
  iovec bytes = {&received.hello, sizeof(received.hello)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got =
      ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return SocketError(StatusCode::kUnavailable, "recvmsg");
  std::vector<Fd> descriptors = TakeDescriptors(&message);
  if (got == 0) {
    return Status(StatusCode::kUnavailable,
                  "the peer closed the connection instead of a hello");
  }
  const Hello& hello = received.hello;
  const std::size_t expected = hello.kind == Hello::kOffer ? 1 : 0;
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
  const bool lost = cut && expected == 1 && descriptors.empty();
  if (lost) {
    errno = EMFILE;
    received.memory_lost =
        SocketError(StatusCode::kResourceExhausted, "recvmsg");
  }
  if (got != static_cast<ssize_t>(sizeof(hello)) ||
      hello.magic != Hello::kMagic || hello.version != Hello::kVersion ||
      (!lost && (cut || descriptors.size() != expected))) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("expected a hello of version ", Hello::kVersion, ", ",
               sizeof(hello), " bytes and ", expected, " descriptor(s), seen ",
               got, " bytes and ", descriptors.size(), " descriptors"));
  }
  if (expected == 1 && !lost) received.memory = std::move(descriptors.front());
  return received;
}

void SetFailure(const Status& why, Hello* hello) {
  hello->kind = Hello::kFailed;
  hello->code = why.code();
  const std::size_t bytes =
      std::min(why.message().size(), hello->why.size() - 1);
  std::memcpy(hello->why.data(), why.message().data(), bytes);
}

Status FailureOf(const Hello& hello) {
  const auto code = static_cast<std::uint64_t>(hello.code);
  const auto end = std::find(hello.why.begin(), hello.why.end(), '\0');
  return Status(
      code > 0 && code <= kMaxStatusCode ? hello.code : StatusCode::kAborted,
      std::string(hello.why.begin(), end));
}

namespace {

bool Credentials(const Fd& socket, ucred* peer) {
  socklen_t bytes = sizeof(*peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, peer, &bytes) == 0;
}

}  // namespace

Status CheckPeerUser(const Fd& socket) {
  ucred peer = {};
  if (!Credentials(socket, &peer)) {
    return SocketError(StatusCode::kUnavailable, "getsockopt(SO_PEERCRED)");
  }
  if (peer.uid != ::geteuid()) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected a process of user ", ::geteuid(),
                         ", seen one of user ", peer.uid));
  }
  return Status();
}

Fd WatchProcess(const Fd& socket, int pid) {
  ucred peer = {};
  if (!Credentials(socket, &peer) || peer.pid != pid || pid <= 0 ||
      pid == ::getpid()) {
    return Fd();
  }
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace gradientflow
