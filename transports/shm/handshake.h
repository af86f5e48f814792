#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/shm/fifo.h"
#include "transports/shm/hello.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_link.h"

namespace gradientflow {

// Makes one connection to every peer of the host and maps their arenas. One
// loop for all of them, so that a slow or hostile one holds up no other. A rank
// is done when all are, so that one that fails finds all of them listening, and
// each ends with the reason of the first.
class ShmHandshake {
 public:
  // All outlive it.
  ShmHandshake(const ConnectArgs& args, const Fd& listener,
               std::shared_ptr<ShmArena> arena, std::size_t fifo_bytes);

  // What each link is made of, by rank; no socket where there is none.
  Result<std::vector<ShmLinkArgs>> Run();

 private:
  struct Outgoing {
    int rank;
    Fd socket;  // Invalid until the listener takes it.
  };

  Status AllocateFifos();
  bool IsPeer(int rank) const;
  bool Expects(int rank) const;
  // Those that are not there; if all are, those that are not ready.
  std::vector<int> Missing() const;
  bool Done() const;
  Status Late() const;

  // Until something may have come, not for long.
  void Wait();
  // One round for all: each makes one step and blocks for nothing. An error is
  // told by a peer, or is this rank's own.
  Status Round();
  Status Connect(Outgoing* to, bool* done);
  Status ReadReply(Outgoing* from, bool* done);
  Status AcceptAll();
  Status ReadIncoming(Fd* from, bool* done);
  Status ReadPeer(int rank);
  void SayReady();
  // A peer has gone without a word: another may tell why.
  void Suspect(int rank, const Status& why);
  // Whether the suspicion is to be the reason.
  bool Suspicious() const;

  // Tells all peers that can be reached; those that are still to come, within
  // `patience`.
  void TellAll(const Status& why, Clock::Time patience);
  void Tell(const Fd& socket);

  Status CheckHello(const Hello& hello) const;
  Hello HelloTo(int rank) const;
  // Takes the peer in: its memory, its FIFO, its socket. It has proven to be
  // of this session, so what is wrong with it ends the handshake.
  Status Finish(const ReceivedHello& received, Fd* socket);

  const ConnectArgs& args_;
  const Fd& listener_;
  const std::shared_ptr<ShmArena> arena_;
  const std::size_t fifo_bytes_;
  std::vector<ShmLinkArgs> ends_;            // By rank.
  std::vector<std::uint64_t> fifo_offsets_;  // By rank: the peer's to write.
  std::vector<bool> ready_;                  // By rank.
  bool said_ready_ = false;
  std::vector<Outgoing> outgoing_;
  std::vector<Fd> incoming_;  // Accepted, hello not yet read.
  std::string last_stranger_;
  bool told_by_peer_ = false;  // The error is a peer's, who tells all.
  Status suspect_;
  Clock::Time suspect_since_{};
  // This rank's, or a peer's, while others are told.
  Status failed_;
  std::vector<bool> told_;  // By rank.
};

}  // namespace gradientflow
