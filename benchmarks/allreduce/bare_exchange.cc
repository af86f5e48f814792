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
#include <iterator>
#include <vector>

#include "benchmarks/allreduce/workers.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"

// Nothing but send, recv and poll; no library code on the timed path.
namespace gradientflow::benchmarks {
namespace {

// Small exchanges are over before a sleeper is awake.
constexpr std::size_t kSmallBytes = std::size_t{256} << 10;
constexpr int kSpins = 2000;
using Sockets = std::array<int, kMostConnections>;

Status SystemError(const char* what) {
  return Status(StatusCode::kInternal,
                StrCat("bare exchange: ", what, ": ", std::strerror(errno)));
}

// What one connection carries, both ways at once. The bytes lie in `window`
// bytes at `out` and `in`, over and over.
struct Stream {
  int fd = -1;
  const std::byte* out = nullptr;
  std::byte* in = nullptr;
  std::size_t window = 1;
  std::size_t bytes = 0;
  std::size_t sent = 0;
  std::size_t received = 0;
  bool done() const { return sent == bytes && received == bytes; }
};

class BareExchange final : public Worker {
 public:
  BareExchange(const Sockets& sockets, std::size_t most_bytes)
      : sockets_(sockets),
        most_bytes_(most_bytes),
        out_(kMostConnections * kWindowBytes),
        in_(kMostConnections * kWindowBytes) {}

  Result<Outcome> Run(const Batch& batch) override {
    if (batch.way < 0 || batch.way >= kExchangeWays ||
        batch.bytes > most_bytes_) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("expected a way below ", kExchangeWays, " and ", most_bytes_,
                 " bytes at most, got ", batch.way, " and ", batch.bytes));
    }
    way_ = WayOf(batch.way);
    if (batch.check) return CheckBytes(batch.bytes);
    for (int i = 0; i < batch.warmup; ++i) {
      GF_RETURN_IF_ERROR(Exchange(InCaches(batch.bytes)));
    }
    GF_RETURN_IF_ERROR(Exchange(InCaches(1)));  // Both are there.
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    for (int i = 0; i < batch.iterations; ++i) {
      GF_RETURN_IF_ERROR(Exchange(InCaches(batch.bytes)));
    }
    Outcome outcome;
    outcome.seconds = Seconds(clock.Now() - begin) / batch.iterations;
    return outcome;
  }

 private:
  using Streams = std::vector<Stream>;
  static constexpr std::size_t kWindowBytes = kCallSizes[2];

  // That all bytes get there, each once: from buffers that hold them all.
  Result<Outcome> CheckBytes(std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    std::vector<std::byte> in(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      out[i] = static_cast<std::byte>(i % 251);
    }
    Streams streams = Share(bytes);
    std::size_t begin = 0;
    for (Stream& stream : streams) {
      stream.out = out.data() + begin;
      stream.in = in.data() + begin;
      stream.window = std::max<std::size_t>(stream.bytes, 1);
      begin += stream.bytes;
    }
    GF_RETURN_IF_ERROR(Exchange(std::move(streams)));
    Outcome outcome;
    for (std::size_t i = 0; i < bytes; ++i) outcome.wrong += in[i] != out[i];
    return outcome;
  }

  // A share of the bytes for each connection.
  Streams Share(std::size_t bytes) const {
    const auto used = static_cast<std::size_t>(way_.connections);
    Streams streams(used);
    for (std::size_t i = 0; i < used; ++i) {
      streams[i].fd = sockets_[i];
      streams[i].bytes = bytes * (i + 1) / used - bytes * i / used;
    }
    return streams;
  }

  Streams InCaches(std::size_t bytes) {
    Streams streams = Share(bytes);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      streams[i].window = way_.call_bytes;
      streams[i].out = &out_[i * kWindowBytes];
      streams[i].in = &in_[i * kWindowBytes];
    }
    return streams;
  }

  // What the next call moves of a stream that has moved `done`.
  std::size_t Next(const Stream& stream, std::size_t done) const {
    return std::min({stream.bytes - done, way_.call_bytes,
                     stream.window - done % stream.window});
  }

  // Moves once what it can. Returns bytes moved, or -1.
  std::ptrdiff_t Move(Stream& stream) const {
    std::ptrdiff_t moved = 0;
    if (stream.sent < stream.bytes) {
      const ssize_t n =
          send(stream.fd, stream.out + stream.sent % stream.window,
               Next(stream, stream.sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return -1;
      if (n > 0) {
        stream.sent += static_cast<std::size_t>(n);
        moved += n;
      }
    }
    if (stream.received < stream.bytes) {
      const ssize_t n =
          recv(stream.fd, stream.in + stream.received % stream.window,
               Next(stream, stream.received), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
      if (n > 0) {
        stream.received += static_cast<std::size_t>(n);
        moved += n;
      }
    }
    return moved;
  }

  Status Exchange(Streams streams) const {
    std::size_t bytes = 0;
    for (const Stream& stream : streams) bytes += stream.bytes;
    const bool spins = way_.spins || bytes <= kSmallBytes;
    int idle = 0;
    for (;;) {
      std::ptrdiff_t moved = 0;
      bool done = true;
      for (Stream& stream : streams) {
        const std::ptrdiff_t bytes_moved = Move(stream);
        if (bytes_moved < 0) return SystemError("the other side is gone");
        moved += bytes_moved;
        done = done && stream.done();
      }
      if (done) return Status();
      idle = moved > 0 ? 0 : idle + 1;
      if (idle > (spins ? kSpins : 0)) Block(streams);
    }
  }

  static void Block(const Streams& streams) {
    std::array<pollfd, kMostConnections> fds;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const int in = streams[i].received < streams[i].bytes ? POLLIN : 0;
      const int out = streams[i].sent < streams[i].bytes ? POLLOUT : 0;
      fds[i] = {streams[i].fd, static_cast<short>(in | out), 0};
      if ((in | out) == 0) fds[i].fd = -1;
    }
    poll(fds.data(), streams.size(), -1);
  }

  const Sockets sockets_;
  const std::size_t most_bytes_;
  ExchangeWay way_ = WayOf(0);
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

ExchangeWay WayOf(int index) {
  constexpr int kCounts = static_cast<int>(std::size(kConnectionCounts));
  constexpr int kSizes = static_cast<int>(std::size(kCallSizes));
  static_assert(kExchangeWays == 2 * kCounts * kSizes);
  return {kConnectionCounts[index % kCounts],
          kCallSizes[index / kCounts % kSizes], index / kCounts / kSizes == 1};
}

std::string Describe(const ExchangeWay& way) {
  return StrCat(way.connections, " conn, ", way.call_bytes >> 10, "K",
                way.spins ? ", spins" : "");
}

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
