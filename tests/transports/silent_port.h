#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "tests/transports/tcp_pair.h"
#include "transports/tcp/socket.h"

namespace gradientflow::tcp_test {

// A port of the loopback as behind a firewall that drops what it does not let
// in: who connects gets no answer. It needs no privilege: the kernel drops
// requests to a listener whose queue is full.
class SilentPort {
 public:
  explicit SilentPort(const std::string& host = "127.0.0.1")
      : listener_(ListenOn(*SocketAddress::Parse(host + ":0"), 0).value()),
        guest_(Fill()) {}

  std::string address() const { return LocalAddress(listener_).ToString(); }

 private:
  // The queue has room for one more than listen() says.
  Socket Fill() const {
    static_cast<void>(::listen(listener_.fd(), 0));
    Socket guest = StartConnect(LocalAddress(listener_), 0).value();
    static_cast<void>(WaitFor(guest, POLLOUT));
    return guest;
  }

  Socket listener_;
  Socket guest_;
};

}  // namespace gradientflow::tcp_test
