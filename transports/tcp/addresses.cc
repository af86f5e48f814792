#include "transports/tcp/addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>

#include "gradientflow/base/str_cat.h"

// "host:port" as people write it <─> sockaddr_storage as the kernel takes it.
// Only Resolve() asks a name server; Parse() takes numbers.
namespace gradientflow {
namespace {

sockaddr_in As4(const sockaddr_storage& storage) {
  sockaddr_in address;
  std::memcpy(&address, &storage, sizeof(address));
  return address;
}

sockaddr_in6 As6(const sockaddr_storage& storage) {
  sockaddr_in6 address;
  std::memcpy(&address, &storage, sizeof(address));
  return address;
}

template <typename Address>
SocketAddress Wrap(const Address& address) {
  sockaddr_storage storage = {};
  std::memcpy(&storage, &address, sizeof(address));
  return SocketAddress(storage, sizeof(address));
}

}  // namespace

// The last colon separates the port. An IPv6 address has colons of its own and
// so needs brackets.
Result<HostPort> ParseHostPort(std::string_view text) {
  const Status bad(
      StatusCode::kInvalidArgument,
      StrCat("expected host:port or [ipv6]:port, seen \"", text, "\""));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return bad;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (host.find(':') != std::string_view::npos) != bracketed) {
    return bad;
  }
  HostPort where;
  where.host = std::string(host);
  const auto [end, error] =
      std::from_chars(port.data(), port.data() + port.size(), where.port);
  if (error != std::errc() || end != port.data() + port.size()) return bad;
  return where;
}

bool IsOfThisHostOnly(std::string_view text) {
  const std::optional<SocketAddress> address = SocketAddress::Parse(text);
  if (address) return address->IsLoopback();
  const Result<HostPort> where = ParseHostPort(text);
  return where.ok() && where.value().host == "localhost";
}

std::optional<SocketAddress> SocketAddress::Parse(std::string_view text) {
  const Result<HostPort> where = ParseHostPort(text);
  if (!where.ok()) return std::nullopt;
  const std::string& host = where.value().host;
  sockaddr_in v4 = {};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(where.value().port);
    return Wrap(v4);
  }
  sockaddr_in6 v6 = {};
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(where.value().port);
    return Wrap(v6);
  }
  return std::nullopt;
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    const sockaddr_in v4 = As4(storage_);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return StrCat(text, ":", ntohs(v4.sin_port));
  }
  if (family() == AF_INET6) {
    const sockaddr_in6 v6 = As6(storage_);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return StrCat("[", text, "]:", ntohs(v6.sin6_port));
  }
  return "an unknown address";
}

std::uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? As6(storage_).sin6_port
                                    : As4(storage_).sin_port);
}

void SocketAddress::SetPort(std::uint16_t port) {
  if (family() == AF_INET) {
    sockaddr_in v4 = As4(storage_);
    v4.sin_port = htons(port);
    *this = Wrap(v4);
  } else if (family() == AF_INET6) {
    sockaddr_in6 v6 = As6(storage_);
    v6.sin6_port = htons(port);
    *this = Wrap(v6);
  }
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) {
    return ntohl(As4(storage_).sin_addr.s_addr) >> 24 == 127;
  }
  const sockaddr_in6 v6 = As6(storage_);
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool SocketAddress::IsLinkLocal() const {
  if (family() == AF_INET) {  // 169.254.0.0/16
    return ntohl(As4(storage_).sin_addr.s_addr) >> 16 == 0xa9fe;
  }
  const sockaddr_in6 v6 = As6(storage_);
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

SocketAddress AnyAddress(int family) {
  return *SocketAddress::Parse(family == AF_INET6 ? "[::]:0" : "0.0.0.0:0");
}

Result<std::vector<SocketAddress>> Resolve(const HostPort& where) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(
      where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kUnavailable,
                  StrCat("host \"", where.host, "\": ", ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found,
                                                             &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr;
       entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    sockaddr_storage storage = {};
    std::memcpy(&storage, entry->ai_addr,
                std::min<std::size_t>(entry->ai_addrlen, sizeof(storage)));
    addresses.emplace_back(storage, entry->ai_addrlen);
  }
  if (addresses.empty()) {
    return Status(StatusCode::kUnavailable,
                  StrCat("host \"", where.host, "\" has no IP address"));
  }
  return addresses;
}

}  // namespace gradientflow
