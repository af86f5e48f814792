#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/tcp/door.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// The lanes that peers open to this rank, picked out of all connections that
// come in. One that has proven itself becomes a lane; all others are strangers.
// NOT thread-safe.
class IncomingLanes final : public Door::Guests {
 public:
  struct Args {
    int rank = 0;
    Bits256 secret = {};
    std::vector<int> lanes;  // By rank; 0: none is expected.
    // Connections that may wait for their proof at the same time, besides those
    // of a few peers. The next one takes the place of the oldest.
    std::size_t most_strangers = 256;
  };
  // `clock` outlives the object.
  IncomingLanes(Args args, const Clock& clock);

  // From here on expects that many lanes of `peer`, and drops those that there
  // are; 0: none.
  void Expect(int peer, int lanes);

  bool full() const override;
  bool DropOldestStranger() override;
  void Admit(Socket socket) override;
  // Closes connections that have proven nothing for 10 seconds.
  void DropTheSilent();
  // Returns whether no connection waits for its proof.
  bool quiet() const { return connections_.empty(); }
  // Descriptors for poll(), in the order of the connections.
  std::vector<int> Descriptors() const;
  // The lanes of peers that have others still to open.
  std::vector<int> LaneDescriptors() const;
  // Such a lane has something to say although it is not accepted: it has been
  // closed. Drops all lanes of that peer, which begins again.
  void DropLanesWith(int fd);
  // Descriptor `fd` is ready, or hung up. An error is a difference between the
  // settings of two ranks, and ends the job.
  Status OnReady(int fd);

  // Returns a rank all of whose lanes are connected, and have not been closed
  // by it meanwhile; -1 if there is none. If it has closed some, all are
  // dropped: it has begun again.
  int FindComplete();
  // Tells a rank that FindComplete() has returned that its lanes are kept.
  Status Accept(int peer) const;
  // The lanes of such a rank. May be called once per rank.
  std::vector<Socket> TakeLanes(int peer);

 private:
  struct Connection {
    Socket socket;
    HelloReader reader;
    // Once it has been answered: its hello, and the challenge to it.
    std::optional<LaneHello> hello;
    Bits256 challenge = {};
    Clock::Time since{};
  };
  using Connections = std::list<Connection>;

  // Returns whether to keep the connection in this list.
  Result<bool> OnHello(Connection& connection, const LaneHello& hello);
  bool FitsPeer(const LaneHello& hello) const;
  bool Answer(Connection& connection, const LaneHello& hello);

  struct Lane {
    Socket socket;
    Bits256 nonce = {};  // The peer's challenge.
  };
  // What a peer has opened at one time.
  struct Lanes {
    std::vector<Lane> lanes;
    std::uint32_t dial = 0;  // LaneHello::dial; 0 before the first lane.
  };

  const Args args_;
  const Clock& clock_;
  Connections connections_;   // Oldest first.
  std::vector<Lanes> peers_;  // By rank.
  std::size_t most_connections_ = 0;
};

}  // namespace gradientflow
