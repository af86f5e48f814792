#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/link_source.h"
#include "transports/poller.h"
#include "transports/tcp/interfaces.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/lane_maker.h"
#include "transports/tcp/ready_set.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Endpoint::TakeLinkSource() of TCP: a LaneMaker that is driven by the Poller,
// and that dials whom the fabric asks for.
class TcpLinkSource final : public LinkSource,
                            private LaneMaker::Sink,
                            private Poller::Target {
 public:
  struct Args {
    TransportOptions options;
    ConnectArgs job;  // Those of Connect().
    LinkSource::Sink* sink = nullptr;
    std::vector<Socket> listeners;
    int rails = 1;  // RailsIn() this rank's addresses.
    std::shared_ptr<IoThreads> io = nullptr;  // May be null.
  };
  static Result<std::unique_ptr<LinkSource>> Create(Args args);
  ~TcpLinkSource() override;

  // From LinkSource.
  Status Learn(const std::vector<std::string>& addresses) override;
  void Dial(int peer) override;
  std::string AddressOf(int peer) const override;
  std::string TroubleWith(int peer) const override;
  bool Poll() override;
  bool busy() const override { return maker_.busy(); }
  std::chrono::nanoseconds Patience() const override;

 private:
  struct Peer {
    std::string address;  // Empty: not known.
    bool linked = false;
    bool wanted = false;
  };

  TcpLinkSource(Args args, ReadySet ready,
                std::vector<InterfaceAddress> interfaces);
  LaneMaker::Args ForMaker(int rails, std::vector<InterfaceAddress> interfaces);

  bool OnEvents(std::uint64_t cookie, std::uint32_t events) override;
  Status OnLanes(int peer, std::vector<Socket> lanes) override;
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  const Peer& at(int peer) const {
    return peers_[static_cast<std::size_t>(peer)];
  }

  bool Round(Clock::Time now);
  Status Watch(Clock::Time now);
  void GiveUpOnTheGone();

  const TransportOptions options_;
  const ConnectArgs job_;
  LinkSource::Sink* const sink_;
  const std::vector<Socket> listeners_;
  const std::shared_ptr<IoThreads> io_;
  ReadySet ready_;
  LaneMaker maker_;
  std::vector<Peer> peers_;
  Clock::Time due_{};  // When Poll() has something to do next.
  bool failed_ = false;
};

}  // namespace gradientflow
