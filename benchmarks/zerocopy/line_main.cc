// One end of a TCP connection over which memory is written plainly and with
// MSG_ZEROCOPY, in turn:
//
//   line receive PORT
//   line send ADDRESS:PORT MEGABYTES ROUNDS WRITE_BYTES...
//
// The receiver says "listening" and takes one connection after another. A batch
// is the bytes of a region of memory, as a pool of gradients, each of which is
// written once. It is over when the receiver has them, and the kernel has given
// the memory back. For each size of writes the sender prints a line: the size;
// for plain writes the median seconds of a batch, its own processor time and
// the receiver's; the same for zero-copy writes; and the share of these that
// the kernel copied after all.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
// Needs <time.h> before it.
#include <linux/errqueue.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "benchmarks/lib/must.h"
#include "gradientflow/base/clock.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/socket.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kReceiveBytes = std::size_t{256} << 10;

[[noreturn]] void Throw(const char* what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

double ProcessorSeconds() {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void Wait(int fd, short events) {
  pollfd ready = {fd, events, 0};
  ::poll(&ready, 1, -1);
}

void SendAll(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      Wait(fd, POLLOUT);
    } else if (sent < 0 && errno != EINTR) {
      Throw("send", errno);
    } else if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }
}

// Returns false if the other side has closed before the first byte.
bool ReceiveAll(int fd, void* data, std::size_t bytes) {
  auto* const begin = static_cast<std::byte*>(data);
  for (std::size_t have = 0; have < bytes;) {
    const ssize_t got = ::recv(fd, begin + have, bytes - have, 0);
    if (got == 0 && have == 0) return false;
    if (got < 0 && errno == EAGAIN) {
      Wait(fd, POLLIN);
    } else if (got == 0 || (got < 0 && errno != EINTR)) {
      Throw("the other side is gone", errno);
    } else if (got > 0) {
      have += static_cast<std::size_t>(got);
    }
  }
  return true;
}

struct Cost {
  double seconds = 0;
  double sender = 0;  // Processor time.
  double receiver = 0;
};

class Sender {
 public:
  Sender(Socket socket, std::size_t bytes)
      : socket_(std::move(socket)), pool_(bytes, std::byte{1}) {
    const int on = 1;
    if (::setsockopt(fd(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
      Throw("SO_ZEROCOPY", errno);
    }
  }

  Cost Batch(std::size_t write_bytes, bool zero_copy) {
    const SteadyClock clock;
    const Clock::Time began = clock.Now();
    const double used = ProcessorSeconds();
    const std::uint64_t length = pool_.size();
    SendAll(fd(), &length, sizeof(length));
    for (std::size_t at = 0; at < pool_.size(); at += write_bytes) {
      const std::size_t bytes = std::min(write_bytes, pool_.size() - at);
      if (zero_copy) {
        SendZeroCopy(&pool_[at], bytes);
      } else {
        SendAll(fd(), &pool_[at], bytes);
      }
    }
    while (returned_ < lent_) {
      Wait(fd(), 0);  // POLLERR is always looked for.
      TakeReturned();
    }
    Cost cost;
    if (!ReceiveAll(fd(), &cost.receiver, sizeof(cost.receiver))) {
      Throw("the receiver is gone", 0);
    }
    cost.seconds = Seconds(clock.Now() - began);
    cost.sender = ProcessorSeconds() - used;
    return cost;
  }

  double CopiedShare() const {
    return lent_ > 0 ? static_cast<double>(copied_) / static_cast<double>(lent_)
                     : 0;
  }

 private:
  int fd() const { return socket_.fd(); }

  void SendZeroCopy(const std::byte* at, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t sent = ::send(fd(), at, bytes, MSG_NOSIGNAL | MSG_ZEROCOPY);
      if (sent > 0) {
        ++lent_;
        at += sent;
        bytes -= static_cast<std::size_t>(sent);
        TakeReturned();
      } else if (errno == EAGAIN) {
        Wait(fd(), POLLOUT);
        TakeReturned();
      } else if (errno == ENOBUFS && returned_ < lent_) {  // Too many are lent.
        Wait(fd(), 0);
        TakeReturned();
      } else if (errno != EINTR) {
        Throw("send with MSG_ZEROCOPY", errno);
      }
    }
  }

  // The error queue has ranges of writes whose memory is free again.
  void TakeReturned() {
    for (;;) {
      std::array<char, 128> control = {};
      msghdr message = {};
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      if (::recvmsg(fd(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
           part = CMSG_NXTHDR(&message, part)) {
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(part), sizeof(error));
        if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        const std::uint64_t writes = error.ee_data - error.ee_info + 1;
        returned_ += writes;
        if ((error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) {
          copied_ += writes;
        }
      }
    }
  }

  Socket socket_;
  std::vector<std::byte> pool_;
  std::uint64_t lent_ = 0;  // Writes.
  std::uint64_t returned_ = 0;
  std::uint64_t copied_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void PrintMedians(const std::vector<Cost>& costs) {
  for (double Cost::*const part :
       {&Cost::seconds, &Cost::sender, &Cost::receiver}) {
    std::vector<double> values;
    for (const Cost& cost : costs) values.push_back(cost.*part);
    std::printf(" %.9f", Median(std::move(values)));
  }
}

void Send(const std::string& to, std::size_t bytes, int rounds,
          const std::vector<std::size_t>& sizes) {
  const auto address = SocketAddress::Parse(to);
  if (!address) throw std::runtime_error("expected ADDRESS:PORT, seen " + to);
  for (const std::size_t size : sizes) {
    Socket socket = Must(StartConnect(*address, 0));
    Wait(socket.fd(), POLLOUT);
    if (const int error = ConnectError(socket); error != 0) {
      Throw("connect", error);
    }
    Must(PrepareConnection(socket));
    Sender sender(std::move(socket), bytes);
    std::vector<Cost> plain, zero;
    sender.Batch(size, false);  // Warms up.
    sender.Batch(size, true);
    for (int round = 0; round < rounds; ++round) {
      plain.push_back(sender.Batch(size, false));
      zero.push_back(sender.Batch(size, true));
    }
    std::printf("%zu", size);
    PrintMedians(plain);
    PrintMedians(zero);
    std::printf(" %.4f\n", sender.CopiedShare());
    std::fflush(stdout);
  }
}

void Serve(int fd) {
  std::vector<std::byte> memory(kReceiveBytes);
  for (std::uint64_t left = 0; ReceiveAll(fd, &left, sizeof(left));) {
    const double used = ProcessorSeconds();
    while (left > 0) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, memory.size());
      if (!ReceiveAll(fd, memory.data(), bytes)) return;
      left -= bytes;
    }
    const double cost = ProcessorSeconds() - used;
    SendAll(fd, &cost, sizeof(cost));
  }
}

void Receive(std::uint16_t port) {
  const Socket listener = Must(
      ListenOn(*SocketAddress::Parse("0.0.0.0:" + std::to_string(port)), 0));
  std::printf("listening\n");
  std::fflush(stdout);
  for (;;) {  // Each size has a connection of its own.
    Wait(listener.fd(), POLLIN);
    const Socket socket(
        ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.valid()) Serve(socket.fd());
  }
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "receive") {
    Receive(static_cast<std::uint16_t>(std::stoul(words[1])));
  } else if (words.size() > 4 && words[0] == "send") {
    std::vector<std::size_t> sizes;
    for (std::size_t i = 4; i < words.size(); ++i) {
      sizes.push_back(std::stoul(words[i]));
    }
    Send(words[1], std::stoul(words[2]) << 20, std::stoi(words[3]), sizes);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  try {
    return gradientflow::benchmarks::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "line: %s\n", error.what());
    return 1;
  }
}
