#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/link_source.h"
#include "transports/poller.h"
#include "transports/tcp/door.h"
#include "transports/tcp/hello.h"
#include "transports/tcp/incoming.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/outgoing.h"
#include "transports/tcp/ready_set.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Endpoint::TakeLinkSource() of TCP: connects and accepts while the job runs.
//
// A rank that has connected all lanes waits for kAccept on the first of them
// before it uses any. Both ranks of a pair may connect at the same time. Then
// the higher one decides which lanes to keep: its own if it has confirmed one
// of them before all lanes of the other had arrived, else the other's, which it
// accepts. The lower rank accepts whatever arrives. So nothing is sent on lanes
// that are not kept. If a lane is closed instead of accepted, all are opened
// again. Strangers are treated as while ranks connect (IncomingLanes, Door).
class TcpLinkSource final : public LinkSource, private Poller::Target {
 public:
  struct Args {
    TransportOptions options;
    ConnectArgs job;  // Those of Connect().
    Sink* sink = nullptr;
    std::vector<Socket> listeners;
    int rails = 1;  // RailsIn() this rank's addresses.
    std::vector<InterfaceAddress> interfaces;  // Set by Create().
  };
  static Result<std::unique_ptr<LinkSource>> Create(Args args);
  ~TcpLinkSource() override;

  // From LinkSource.
  Status Learn(const std::vector<std::string>& addresses) override;
  void Dial(int peer) override;
  std::string AddressOf(int peer) const override;
  std::string TroubleWith(int peer) const override;
  bool Poll() override;
  bool busy() const override {
    return !dials_.empty() || !incoming_.quiet() || door_shut_;
  }
  std::chrono::nanoseconds Patience() const override;

 private:
  struct Peer {
    std::string address;  // Empty: not known.
    int lanes = 0;        // Above 0 if the address is known.
    bool linked = false;
    bool wanted = false;
  };
  // The lanes that this rank opens to a peer.
  struct Dialling {
    int peer = 0;
    std::list<OutgoingLane> lanes;
    HelloReader answer;  // On the first lane.
    bool accepted = false;
    Clock::Time again_at{};  // If there are no lanes, when to begin again.
    std::string trouble;
  };
  // Something that is ready, as poll() found it.
  struct Interest {
    Dialling* dialling = nullptr;  // Null: a connection that came in...
    bool is_lane = false;          // ... and has proven itself.
    OutgoingLane* lane = nullptr;  // One that is dialled; null if connected.
    std::size_t attempt = 0;
  };

  TcpLinkSource(Args args, ReadySet ready);

  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& at(int peer) const {
    return peers_[static_cast<std::size_t>(peer)];
  }
  const Dialling* FindDialling(int peer) const;

  bool Round(Clock::Time now);
  Status Begin(Dialling& dialling, Clock::Time now);
  OutgoingLane::Args LaneTo(int peer, int lane, bool reachable) const;
  Status StartAttempts(Clock::Time now);
  std::vector<pollfd> Gather(Clock::Time now, std::vector<Interest>* interests);
  Status Handle(const std::vector<pollfd>& ready,
                const std::vector<Interest>& interests, Clock::Time now,
                bool* moved);
  void ReadAnswer(Dialling& dialling, int fd, Clock::Time now);
  void BeginAgain(Dialling& dialling, const std::string& why, Clock::Time now);
  Status KeepIncoming();
  Status KeepOutgoing();
  void GiveUpOnTheGone();
  Status MakeLink(int peer, std::vector<Socket> lanes);
  void StopDialling(int peer);
  Status WithoutDescriptors(int peer) const;

  const TransportOptions options_;
  const ConnectArgs job_;
  Sink* const sink_;
  const std::vector<Socket> listeners_;
  const int rails_;
  const std::vector<InterfaceAddress> interfaces_;
  ReadySet ready_;
  IncomingLanes incoming_;
  Door door_;
  bool door_shut_ = false;  // For a moment: see Door.
  std::vector<Peer> peers_;
  std::list<Dialling> dials_;
  Clock::Time due_{};  // When Poll() has something to do next.
  bool failed_ = false;
};

}  // namespace gradientflow
