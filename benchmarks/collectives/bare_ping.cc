// A bare ping-pong of 8 bytes over one TCP connection, next to the latency that
// gradientflow_probe finds. It spins, as the library does where each rank has a
// core.
//
//   bare_ping listen PORT SECONDS        the one that answers
//   bare_ping HOST PORT SECONDS          prints half of a round trip in us:
//                                        median, 99th percentile
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/collectives/bare_sockets.h"
#include "gradientflow/base/quantile.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kBytes = 8;
constexpr int kAttempts = 100;
constexpr double kWarmUpSeconds = 0.05;

void Move(int socket, bool sends, std::array<char, kBytes>& ball) {
  for (std::size_t at = 0; at < kBytes;) {
    char* const from = ball.data() + at;
    at += Moved(sends ? ::send(socket, from, kBytes - at, MSG_NOSIGNAL)
                      : ::recv(socket, from, kBytes - at, MSG_DONTWAIT));
  }
}

sockaddr_in AddressOf(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("expected an IPv4 address, got " + host);
  }
  return address;
}

int Accept(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = AddressOf("0.0.0.0", port);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0 ||
      ::listen(listener, 1) != 0) {
    throw std::runtime_error(std::strerror(errno));
  }
  return ::accept(listener, nullptr, nullptr);
}

int Connect(const std::string& host, int port) {
  const sockaddr_in address = AddressOf(host, port);
  for (int i = 0; i < kAttempts; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) == 0) {
      return socket;
    }
    ::close(socket);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error(std::strerror(errno));
}

void Run(const std::string& host, int port, double seconds) {
  const bool answers = host == "listen";
  const int socket = answers ? Accept(port) : Connect(host, port);
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::array<char, kBytes> ball{};
  if (answers) {
    while (ball[0] == 0) {
      Move(socket, false, ball);
      Move(socket, true, ball);
    }
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto between = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  for (Clock::time_point begin = start; ball[0] == 0;) {
    const double since = between(start, begin);
    if (since > seconds + kWarmUpSeconds) ball[0] = 1;  // The last one.
    Move(socket, true, ball);
    Move(socket, false, ball);
    const Clock::time_point end = Clock::now();
    if (since > kWarmUpSeconds) times.push_back(between(begin, end) / 2);
    begin = end;
  }
  std::printf("%.3f %.3f\n", 1e6 * Quantile(times, 0.5),
              1e6 * Quantile(times, 0.99));
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("expected 3 arguments");
  gradientflow::benchmarks::Run(argv[1], std::atoi(argv[2]),
                                std::atof(argv[3]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "bare_ping: %s\n", error.what());
  return 1;
}
