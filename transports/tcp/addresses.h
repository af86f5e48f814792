#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow {

// An IPv4 or IPv6 address with a port. A value.
class SocketAddress {
 public:
  SocketAddress() = default;  // Has no address family.
  // REQUIRES bytes <= sizeof(storage).
  SocketAddress(const sockaddr_storage& storage, socklen_t bytes)
      : storage_(storage), bytes_(bytes) {}

  // Parses "10.0.0.2:4321" or "[fd00::1]:4321"; numbers only, no names.
  static std::optional<SocketAddress> Parse(std::string_view text);
  // The inverse of Parse().
  std::string ToString() const;

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t bytes() const { return bytes_; }
  std::uint16_t port() const;
  void SetPort(std::uint16_t port);
  bool IsLoopback() const;
  bool IsLinkLocal() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t bytes_ = 0;
};

// All addresses of this host of family AF_INET or AF_INET6, to listen at; port
// 0.
SocketAddress AnyAddress(int family);

struct HostPort {
  std::string host;  // Without brackets.
  std::uint16_t port = 0;
};

// Parses "host:port" or "[ipv6]:port". kInvalidArgument says what was expected.
Result<HostPort> ParseHostPort(std::string_view text);

// Whether `text` says by itself that no other host can come to it: "localhost"
// or an address of the loopback, with a port. False for "127.1", which is none.
bool IsOfThisHostOnly(std::string_view text);

// Returns all addresses of a name. May ask a name server, and block for it.
Result<std::vector<SocketAddress>> Resolve(const HostPort& where);

}  // namespace gradientflow
