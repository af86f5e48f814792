#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/link.h"
#include "transports/tcp/door.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/outgoing.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Makes the lanes between this rank and its peers, whichever side connects.
// Its users decide whom this rank dials, and when: SetUpLanes when ranks open,
// TcpLinkSource while the job runs.
//
// A rank that has connected all lanes waits for kAccept on the first of them
// before it uses any. Both ranks of a pair may connect at the same time. Then
// the higher one decides which lanes to keep: its own if it has confirmed one
// of them before all lanes of the other had arrived, else the other's, which it
// accepts. The lower rank accepts whatever arrives. So nothing is sent on lanes
// that are not kept. If a lane is closed instead of accepted, all are opened
// again. Strangers are dropped (IncomingLanes, Door). NOT thread-safe.
class LaneMaker {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // The lanes to `peer`, which both ranks keep. Called once per peer, within
    // Round(), which an error ends.
    virtual Status OnLanes(int peer, std::vector<Socket> lanes) = 0;
  };

  struct Args {
    TransportOptions options;
    int rank = 0;
    int size = 1;
    Bits256 secret = {};
    const Clock* clock = nullptr;
    int rails = 1;  // RailsIn() this rank's addresses.
    const std::vector<Socket>* listeners = nullptr;
    std::vector<InterfaceAddress> interfaces;
    std::size_t most_strangers = 256;  // See IncomingLanes::Args.
    Sink* sink = nullptr;
  };
  // The pointers outlive the object.
  explicit LaneMaker(Args args);

  // Where `peer` can be reached; from here on its lanes are welcome.
  // kInvalidArgument names the peer. May be called once per peer.
  Status Know(int peer, const std::string& address);
  // Returns whether Know() has found an address that this rank may dial.
  bool HasWays(int peer) { return !FindWays(peer).empty(); }
  // From here on connects to `peer`, as soon as it is known, until there are
  // lanes. No effect if this rank does so already.
  void Dial(int peer);
  // The same, but a lack of file descriptors is no error.
  void DialIfPossible(int peer);
  void StopDialling(int peer);
  bool IsDialling(int peer) const { return FindDialling(peer) != nullptr; }
  // Returns whether lanes are being made, or a connection waits to be accepted.
  bool busy() const {
    return !dials_.empty() || !incoming_.quiet() || door_shut_;
  }
  // Returns whether the listeners are left alone for a moment: see Door.
  bool door_shut() const { return door_shut_; }

  // Starts what is due, waits up to `timeout_ms` for sockets, handles those
  // that are ready, and keeps lanes that are complete. Returns whether any was
  // ready. An error ends the job: the settings of two ranks differ, or this one
  // lacks file descriptors.
  Result<bool> Round(Clock::Time now, int timeout_ms);
  // The descriptors that Round() looks at; listeners come last.
  std::vector<pollfd> Descriptors(Clock::Time now);
  // When Round() has something to do even if no socket is ready; at most
  // `latest`.
  Clock::Time DueBy(Clock::Time latest) const;

  // One for each peer that is dialled and refuses.
  std::vector<PeerRefusal> Refusals() const;
  // For error messages: what has gone wrong with the lanes that this rank opens
  // to `peer`, or "".
  std::string TroubleWith(int peer) const;
  // What has gone wrong with connections that came in, or "": see Door.
  std::string TroubleAtTheDoor() const { return door_.Trouble(); }

 private:
  const std::vector<RatedAddress>& FindWays(int peer);
  struct Peer {
    std::string address;  // Empty: not known.
    int lanes = 0;        // Above 0 if the address is known.
    // Found when they are needed: most ranks are never dialled.
    bool ways_found = false;
    std::vector<RatedAddress> published;
    std::vector<RatedAddress> ways;  // Those that this rank may use.
    bool on_this_host = false;
    std::uint32_t dials = 0;  // How often all lanes have been opened.
  };
  // The lanes that this rank opens to a peer.
  struct Dialling {
    int peer = 0;
    std::list<OutgoingLane> lanes;
    HelloReader answer;  // On the first lane.
    bool accepted = false;
    Clock::Time again_at{};  // If there are no lanes, when to begin again.
    std::string trouble;
    bool may_wait = false;  // For file descriptors.
  };
  // What a descriptor belongs to.
  struct Interest {
    Dialling* dialling = nullptr;  // Null: a connection that came in...
    bool is_lane = false;          // ... and has proven itself.
    OutgoingLane* lane = nullptr;  // One that is dialled; null if connected.
    std::size_t attempt = 0;
  };

  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& at(int peer) const {
    return peers_[static_cast<std::size_t>(peer)];
  }
  const Dialling* FindDialling(int peer) const;
  void Begin(Dialling& dialling, Clock::Time now);
  OutgoingLane::Args LaneTo(int peer, int lane) const;
  Status StartAttempts(Clock::Time now);
  std::vector<pollfd> Gather(Clock::Time now, std::vector<Interest>* interests);
  Status Handle(const std::vector<pollfd>& ready,
                const std::vector<Interest>& interests, Clock::Time now,
                bool* moved);
  void ReadAnswer(Dialling& dialling, int fd, Clock::Time now);
  static void BeginAgain(Dialling& dialling, const std::string& why,
                         Clock::Time now);
  Status KeepIncoming();
  Status KeepOutgoing();
  Status Keep(int peer, std::vector<Socket> lanes);
  Status WithoutDescriptors(int peer) const;

  const Args args_;
  IncomingLanes incoming_;
  Door door_;
  bool door_shut_ = false;
  std::vector<Peer> peers_;
  std::list<Dialling> dials_;
};

// The link to `peer` on these lanes. `job` has the poller and the events; `io`
// may be null.
Result<std::unique_ptr<Link>> LinkOnLanes(int peer, std::vector<Socket> lanes,
                                          const ConnectArgs& job,
                                          std::shared_ptr<IoThreads> io);

}  // namespace gradientflow
