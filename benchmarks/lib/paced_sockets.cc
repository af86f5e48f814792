#include "benchmarks/lib/paced_sockets.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace gradientflow::benchmarks {
namespace {

std::atomic<std::uint64_t> paced_rate{0};

}  // namespace

void PaceSockets(std::uint64_t bytes_per_second) {
  paced_rate.store(bytes_per_second);
}

}  // namespace gradientflow::benchmarks

// Replaces the C library's function in this program.
extern "C" int socket(int domain, int type, int protocol) noexcept {
  constexpr int kTypeBits = 0xf;  // Others are flags such as SOCK_CLOEXEC.
  const auto fd = static_cast<int>(syscall(SYS_socket, domain, type, protocol));
  const std::uint64_t rate = gradientflow::benchmarks::paced_rate.load();
  if (rate > 0 && fd >= 0 && (type & kTypeBits) == SOCK_STREAM) {
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  }
  return fd;
}
