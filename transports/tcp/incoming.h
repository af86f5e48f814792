#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/door.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// The lanes that peers of a higher rank open to this rank, picked out of all
// connections that come in. NOT thread-safe.
class IncomingLanes final : public Door::Guests {
 public:
  struct Args {
    int rank = 0;
    int lanes = 1;
    std::uint64_t session_key = 0;
    std::vector<bool> expected;  // By rank.
  };
  explicit IncomingLanes(Args args);

  bool full() const override;
  bool DropOldestStranger() override;
  void Admit(Socket socket) override;
  // Descriptors for poll(), in the order of the connections.
  std::vector<int> Descriptors() const;
  // Descriptor `fd` is ready, or hung up. An error ends the set-up.
  Status OnReady(int fd);

  bool complete() const { return missing_ == 0; }
  // Returns whether all lanes of that rank are connected.
  bool complete(int peer) const;
  // REQUIRES complete(). May be called once per rank.
  std::vector<Socket> TakeLanes(int peer);

 private:
  struct Connection {
    Socket socket;
    HelloReader reader;
    bool greeted = false;  // It is a peer; its confirmation is awaited.
  };
  using Connections = std::list<Connection>;

  // Returns whether to keep the connection in this list.
  Result<bool> OnHello(Connection& connection, const LaneHello& hello);
  bool IsPeer(const LaneHello& hello) const;

  const Args args_;
  Connections connections_;                 // Oldest first.
  std::vector<std::vector<Socket>> lanes_;  // By rank, then by lane.
  std::size_t missing_ = 0;
  std::size_t most_connections_ = 0;
};

}  // namespace gradientflow
