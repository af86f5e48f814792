#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

struct LinkSettings {
  double gbps = 1;  // Of each link, in each direction.
  int mtu = 1500;   // As on Ethernet.
};

// Hosts for a network that can be had on one machine: each is a network
// namespace with one interface, eth0, joined by a veth pair to a bridge in a
// namespace of its own; both ends of every pair send through a token bucket.
// The namespaces have no names and live by the file descriptors held here, so
// the kernel removes them when this process and its children end, however
// they end.
//
// Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN), `ip` and `tc`.
class LinkedHosts {
 public:
  // kFailedPrecondition says which right or tool is missing.
  // REQUIRES: no other threads in this process.
  static Result<LinkedHosts> Create(int hosts, const LinkSettings& settings);

  LinkedHosts(LinkedHosts&& other) noexcept;
  LinkedHosts& operator=(LinkedHosts&&) = delete;
  ~LinkedHosts();

  // "10.77.0.<host + 1>".
  static std::string Address(int host);

  // Moves the calling thread into `host`'s namespace: its sockets, and those
  // of the threads it starts from then on, are there.
  Status Enter(int host) const;

 private:
  LinkedHosts() = default;
  std::vector<int> namespaces_;  // The bridge's first, then the hosts'.
};

}  // namespace gradientflow::benchmarks
