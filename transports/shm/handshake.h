#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/shm/create.h"
#include "transports/shm/fifo.h"
#include "transports/shm/hello.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow {

// Makes one connection to every peer of the host and maps their arenas. One
// loop for all of them, so that a slow or hostile one holds up no other.
class ShmHandshake {
 public:
  // All outlive it.
  ShmHandshake(const ShmConnectArgs& args, const Fd& listener,
               std::shared_ptr<ShmArena> arena, std::size_t fifo_bytes);

  // What each link is made of, by rank; no socket where there is none.
  Result<std::vector<ShmLinkArgs>> Run();

 private:
  struct Outgoing {
    int rank;
    Fd socket;  // Invalid until the listener takes it.
  };

  Status AllocateFifos();
  bool Expects(int rank) const;
  std::vector<int> Missing() const;
  Status Late() const;

  // Until something may have come, not for long.
  void Wait();
  // Each makes one step and blocks for nothing. `done`: take it off the list.
  Status Connect(Outgoing* to);
  Status ReadReply(Outgoing* from, bool* done);
  Status AcceptAll();
  Status ReadIncoming(Fd* from, bool* done);

  Status CheckHello(const Hello& hello) const;
  Hello HelloTo(int rank) const;
  // Takes the peer in: its memory, its FIFO, its socket. It has proven to be
  // of this session, so what is wrong with it ends the handshake.
  Status Finish(ReceivedHello received, Fd socket);

  const ShmConnectArgs& args_;
  const Fd& listener_;
  const std::shared_ptr<ShmArena> arena_;
  const std::size_t fifo_bytes_;
  std::vector<ShmLinkArgs> ends_;            // By rank.
  std::vector<std::uint64_t> fifo_offsets_;  // By rank: the peer's to write.
  std::vector<Outgoing> outgoing_;
  std::vector<Fd> incoming_;  // Accepted, hello not yet read.
  std::string last_stranger_;
};

}  // namespace gradientflow
