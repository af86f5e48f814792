#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>

#include "benchmarks/lib/rank.h"
#include "gradientflow/base/str_cat.h"

// Bytes per second to which the kernel paces every stream socket that this
// program makes; 0: none. It imitates a link of that rate without root.
// Accepted sockets inherit the rate of their listener. Pacing begins with the
// first packet, so that the library measures the slow link and tunes for it.
// benchmarks/lib/network.py says when this is used.
static std::atomic<std::uint64_t> paced_rate{0};

// Replaces the C library's function in this program.
extern "C" int socket(int domain, int type, int protocol) noexcept {
  constexpr int kTypeBits = 0xf;  // Others are flags such as SOCK_CLOEXEC.
  const auto fd = static_cast<int>(syscall(SYS_socket, domain, type, protocol));
  const std::uint64_t rate = paced_rate.load();
  if (rate > 0 && fd >= 0 && (type & kTypeBits) == SOCK_STREAM) {
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  }
  return fd;
}

int main(int argc, char** argv) {
  using namespace gradientflow;              // NOLINT: a main().
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  std::string who = argv[0];
  try {
    if (argc != 2) throw std::invalid_argument("expected a job in JSON");
    const Options options = Must(Options::FromEnv(environ));
    who += StrCat(": rank ", options.rank);
    const Json job = Json::parse(argv[1]);
    paced_rate = job.value("bytes_per_second", std::uint64_t{0});
    std::printf("%s\n", RankMain(job, options).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), error.what());
    return 1;
  }
}
