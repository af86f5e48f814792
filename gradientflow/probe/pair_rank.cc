#include "gradientflow/probe/pair_rank.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <system_error>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Result<PairRank> FindPairRank(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port =
      colon == std::string::npos ? "" : address.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("--pair: expected host:port, got '", address,
                         "': ", ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(found,
                                                            ::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Fd socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) continue;
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0) {
      return PairRank{0, std::move(socket)};
    }
    // The other one is here, too.
    if (errno == EADDRINUSE) break;
  }
  return PairRank{1, Fd()};
}

}  // namespace gradientflow
