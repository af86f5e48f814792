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

// Makes one connection to every peer of the host and maps the arenas of the
// peers. A single loop serves all connections, so a slow or hostile peer holds
// up no other. A rank is done only when all ranks are. A rank that fails
// therefore finds the others still listening, and each of them ends with the
// reason of the first failure. What two ranks lack for their link fails only
// that link, if ConnectArgs::unlinked allows it.
class ShmHandshake {
 public:
  // All arguments outlive the object.
  ShmHandshake(const ConnectArgs& args, const ShmListener& listener,
               std::shared_ptr<ShmArena> arena, std::size_t fifo_bytes);

  // Returns what each link is made of, by rank. There is no socket where there
  // is no link.
  Result<std::vector<ShmLinkArgs>> Run();

 private:
  struct Outgoing {
    int rank;
    Fd socket;  // Invalid until the listener takes it.
  };

  Status AllocateFifos();
  bool IsPeer(int rank) const;
  bool Expects(int rank) const;
  // Ranks whose connection is missing; if none is, ranks that are not ready.
  std::vector<int> Missing() const;
  bool Done() const;
  Status Late() const;
  // For error messages: the last stranger, or "".
  std::string TurnedAway() const;

  // Blocks for a short time, until something may have arrived.
  void Wait();
  // One round for all peers: each makes at most one step, and none blocks. The
  // error is one that a peer told, or this rank's own.
  Status Round();
  Status Connect(Outgoing* to, bool* done);
  Status ReadReply(Outgoing* from, bool* done);
  // The same error of this rank, with both ranks' numbers.
  Status To(int rank, const Status& why) const;
  Status AcceptAll();
  Status ReadIncoming(Fd* from, bool* done);
  Status ReadPeer(int rank);
  // Returns an error if the rank has ended.
  Status Gone(int rank) const;
  // Finds out whether ranks that have yet to connect have ended.
  Status LookAfterAwaited();
  void SayReady();
  // A peer has gone without a word. Another rank may tell why.
  void Suspect(int rank, const Status& why);
  // Returns whether the suspicion is to become the reason of the failure.
  bool Suspicious() const;

  // Tells all peers that can be reached. Waits for at most `patience` for peers
  // that have yet to connect.
  void TellAll(const Status& why, Clock::Time patience);
  void Tell(const Fd& socket, int rank);

  // Returns the proof of a hello between two ranks. It needs no challenge,
  // because it stays inside the kernel, between processes of one user, and
  // because the name of the listener is fresh.
  Bits256 ProofOf(int from, int to) const;
  Status CheckHello(const Hello& hello) const;
  Hello HelloTo(int rank) const;
  // Takes the peer in: its memory, its FIFO and its socket. The peer has proven
  // that it belongs to this session, so if anything is wrong with it, the two
  // are not linked, or the handshake ends.
  Status Finish(const ReceivedHello& received, Fd* socket);
  bool MayDecline() const { return args_.unlinked != nullptr; }
  // Tells the peer that there will be no link.
  void Decline(int rank, const Status& why, const Fd& socket);
  // The peer has told this rank so.
  Status OnDeclined(int rank, const Hello& hello);

  const ConnectArgs& args_;
  const ShmListener& listener_;
  const std::shared_ptr<ShmArena> arena_;
  const std::size_t fifo_bytes_;
  std::vector<ShmLinkArgs> ends_;            // By rank.
  std::vector<Status> declined_;             // By rank.
  std::vector<Status> lacking_;              // By rank: why no link can be.
  std::vector<std::uint64_t> fifo_offsets_;  // By rank: where the peer writes.
  std::vector<bool> ready_;                  // By rank.
  bool said_ready_ = false;
  std::vector<Outgoing> outgoing_;
  std::vector<Fd> incoming_;  // Accepted, but no hello has come.
  std::string last_stranger_;
  bool told_by_peer_ = false;  // The error is a peer's, which tells all ranks.
  Status suspect_;
  Clock::Time suspect_since_{};
  Clock::Time look_at_{};
  // The failure, of this rank or of a peer, while others are told.
  Status failed_;
  std::vector<bool> told_;  // By rank.
};

}  // namespace gradientflow
