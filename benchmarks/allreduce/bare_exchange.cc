#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "benchmarks/allreduce/workers.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"

// Nothing but send, recv and poll; no library code on the timed path.
namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kCallBytes = std::size_t{256} << 10;
constexpr int kSpins = 2000;
using Sockets = std::array<int, kMostConnections>;

Status SystemError(const char* what) {
  return Status(StatusCode::kInternal,
                StrCat("bare exchange: ", what, ": ", std::strerror(errno)));
}

struct Stream {
  int fd = -1;
  const std::byte* out = nullptr;
  std::size_t to_send = 0;
  std::byte* in = nullptr;
  std::size_t to_receive = 0;
};

class BareExchange final : public Worker {
 public:
  BareExchange(const Sockets& sockets, std::size_t most_bytes)
      : sockets_(sockets), out_(most_bytes), in_(most_bytes) {}

  Result<Outcome> Run(const Batch& batch) override {
    if (batch.connections < 1 || batch.connections > kMostConnections) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("expected 1 to ", kMostConnections,
                           " connections, got ", batch.connections));
    }
    Outcome outcome;
    if (batch.check) return CheckBytes(batch);
    for (int i = 0; i < batch.warmup; ++i) {
      GF_RETURN_IF_ERROR(Exchange(batch.bytes, batch.connections));
    }
    GF_RETURN_IF_ERROR(Exchange(1, 1));  // Both are there.
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    for (int i = 0; i < batch.iterations; ++i) {
      GF_RETURN_IF_ERROR(Exchange(batch.bytes, batch.connections));
    }
    outcome.seconds = Seconds(clock.Now() - begin) / batch.iterations;
    return outcome;
  }

 private:
  Result<Outcome> CheckBytes(const Batch& batch) {
    for (std::size_t i = 0; i < batch.bytes; ++i) {
      out_[i] = static_cast<std::byte>(i % 251);
    }
    GF_RETURN_IF_ERROR(Exchange(batch.bytes, batch.connections));
    Outcome outcome;
    for (std::size_t i = 0; i < batch.bytes; ++i) {
      outcome.wrong += in_[i] != out_[i];
    }
    return outcome;
  }

  // Moves once what it can. Returns bytes moved, or -1.
  static std::ptrdiff_t Move(Stream& stream) {
    std::ptrdiff_t moved = 0;
    if (stream.to_send > 0) {
      const ssize_t n =
          send(stream.fd, stream.out, std::min(stream.to_send, kCallBytes),
               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return -1;
      if (n > 0) {
        stream.out += n;
        stream.to_send -= static_cast<std::size_t>(n);
        moved += n;
      }
    }
    if (stream.to_receive > 0) {
      const ssize_t n =
          recv(stream.fd, stream.in, std::min(stream.to_receive, kCallBytes),
               MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
      if (n > 0) {
        stream.in += n;
        stream.to_receive -= static_cast<std::size_t>(n);
        moved += n;
      }
    }
    return moved;
  }

  Status Exchange(std::size_t bytes, int connections) {
    std::array<Stream, kMostConnections> streams;
    const auto used = static_cast<std::size_t>(connections);
    for (std::size_t i = 0; i < used; ++i) {
      const std::size_t begin = bytes * i / used;
      const std::size_t size = bytes * (i + 1) / used - begin;
      streams[i] = {sockets_[i], &out_[begin], size, &in_[begin], size};
    }
    int spins = 0;
    for (;;) {
      std::size_t left = 0;
      std::ptrdiff_t moved = 0;
      for (std::size_t i = 0; i < used; ++i) {
        const std::ptrdiff_t bytes_moved = Move(streams[i]);
        if (bytes_moved < 0) return SystemError("the other side is gone");
        moved += bytes_moved;
        left += streams[i].to_send + streams[i].to_receive;
      }
      if (left == 0) return Status();
      if (moved > 0) {
        spins = 0;
      } else if (bytes > kCallBytes || ++spins > kSpins) {
        Block(streams.data(), used);
      }
    }
  }

  static void Block(const Stream* streams, std::size_t count) {
    std::array<pollfd, kMostConnections> fds;
    for (std::size_t i = 0; i < count; ++i) {
      const int in = streams[i].to_receive > 0 ? POLLIN : 0;
      const int out = streams[i].to_send > 0 ? POLLOUT : 0;
      fds[i] = {streams[i].fd, static_cast<short>(in | out), 0};
      if ((in | out) == 0) fds[i].fd = -1;
    }
    poll(fds.data(), count, -1);
  }

  const Sockets sockets_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

void NoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// Both ends of a connection over loopback.
Status ConnectPair(int* client, int* server) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      listener >= 0 && *client >= 0 && bind(listener, generic, length) == 0 &&
      listen(listener, 1) == 0 &&
      getsockname(listener, generic, &length) == 0 &&
      connect(*client, generic, length) == 0 &&
      (*server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;
  const Status status = connected ? Status() : SystemError("connecting");
  if (listener >= 0) close(listener);
  if (connected) {
    NoDelay(*client);
    NoDelay(*server);
  }
  return status;
}

}  // namespace

Result<std::unique_ptr<Group>> StartBareExchange(
    const GroupSettings& settings) {
  if (settings.ranks != 2) {
    return Status(StatusCode::kUnimplemented,
                  "the bare exchange is between 2 ranks");
  }
  std::array<Sockets, 2> ends;
  for (std::size_t i = 0; i < kMostConnections; ++i) {
    GF_RETURN_IF_ERROR(ConnectPair(&ends[0][i], &ends[1][i]));
  }
  const std::string path = SocketPath(settings.folder, "bound");
  const std::size_t most_bytes = std::max<std::size_t>(settings.most_bytes, 1);
  std::vector<Program> programs;
  for (const Sockets& sockets : ends) {
    programs.push_back(
        {[&sockets, path, most_bytes] {
           return Serve(path, [&]() -> Result<std::unique_ptr<Worker>> {
             return std::unique_ptr<Worker>(
                 std::make_unique<BareExchange>(sockets, most_bytes));
           });
         },
         {sockets.begin(), sockets.end()}});
  }
  auto group = Group::Start(settings.folder, "bound", 2, programs);
  for (const Sockets& sockets : ends) {
    for (const int fd : sockets) close(fd);
  }
  return group;
}

}  // namespace gradientflow::benchmarks
