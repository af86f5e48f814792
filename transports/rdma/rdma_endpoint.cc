#include "transports/rdma/rdma_endpoint.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rdma_link.h"
#include "transports/rdma/rdma_places.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/create.h"
#include "transports/tcp/interfaces.h"

// How ranks are linked by RDMA:
//
//   Connect()   TCP connections to all of them, as TCP's endpoint makes them;
//               each becomes the control link of an RdmaLink
//   SetUp()     drives these until each works or does not
//   Sort()      those that work are adopted. Of the others both ranks know why;
//               the next transport links them.
namespace gradientflow {
namespace {

// How long the poller may sleep while links are set up.
constexpr std::chrono::milliseconds kNap(1);

// Tells the links what their control links tell, which are made before them.
class Relay final : public LinkEvents {
 public:
  explicit Relay(int ranks) : peers_(static_cast<std::size_t>(ranks)) {}

  // A control link that has gone down meanwhile says so now.
  void SetLink(int peer, RdmaLink* link) {
    Peer& of = At(peer);
    of.link = link;
    if (!of.lost.ok()) link->OnDown(peer, of.lost);
  }

  Result<Landing> OnHeader(int peer, int lane, const Header& header) override {
    if (At(peer).link == nullptr) return Landing{nullptr, true};
    return At(peer).link->OnHeader(peer, lane, header);
  }
  void OnMessage(int peer, int lane, const Header& header) override {
    At(peer).link->OnMessage(peer, lane, header);
  }
  void OnDown(int peer, const Status& why) override {
    if (At(peer).link == nullptr) {
      At(peer).lost = why;
    } else {
      At(peer).link->OnDown(peer, why);
    }
  }

 private:
  struct Peer {
    RdmaLink* link = nullptr;
    Status lost;
  };
  Peer& At(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  std::vector<Peer> peers_;
};

class RdmaEndpoint final : public Endpoint {
 public:
  RdmaEndpoint(const TransportOptions& options, std::unique_ptr<Endpoint> tcp,
               std::shared_ptr<Rail> rail, std::shared_ptr<RdmaPlaces> places)
      : options_(options),
        tcp_(std::move(tcp)),
        rail_(std::move(rail)),
        places_(std::move(places)) {}

  std::string address() const override { return tcp_->address(); }
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) override;
  // Links that are made later are TCP's.
  Result<std::unique_ptr<LinkSource>> TakeLinkSource(
      const ConnectArgs& args, LinkSource::Sink* sink) override {
    return tcp_->TakeLinkSource(args, sink);
  }
  std::string Choices() const override {
    return StrCat(rail_->name(), ": ", rail_->args().choice.why);
  }
  RemotePlaces* places() override { return places_.get(); }
  WriteCounter* writes() override { return rail_.get(); }

 private:
  using RdmaLinks = std::vector<std::unique_ptr<RdmaLink>>;

  RdmaLinks MakeLinks(const ConnectArgs& args,
                      std::vector<std::unique_ptr<Link>> control,
                      const std::shared_ptr<Relay>& relay);
  void SetUp(const ConnectArgs& args, const RdmaLinks& links) const;
  static Result<std::vector<std::unique_ptr<Link>>> Sort(
      const ConnectArgs& args, RdmaLinks links);

  const TransportOptions options_;
  const std::unique_ptr<Endpoint> tcp_;
  const std::shared_ptr<Rail> rail_;
  const std::shared_ptr<RdmaPlaces> places_;
};

Result<std::vector<std::unique_ptr<Link>>> RdmaEndpoint::Connect(
    const ConnectArgs& args) {
  auto relay = std::make_shared<Relay>(args.size);
  ConnectArgs over_tcp = args;
  over_tcp.events = relay.get();
  over_tcp.unlinked = nullptr;
  over_tcp.links_of_failure = nullptr;
  auto control = tcp_->Connect(over_tcp);
  if (!control.ok()) return control.status();
  const bool any =
      std::any_of(control.value().begin(), control.value().end(),
                  [](const auto& link) { return link != nullptr; });
  if (!any) return std::move(control).value();
  RdmaLinks links = MakeLinks(args, std::move(control).value(), relay);
  GF_RETURN_IF_ERROR(rail_->Start(args.poller));
  SetUp(args, links);
  return Sort(args, std::move(links));
}

RdmaEndpoint::RdmaLinks RdmaEndpoint::MakeLinks(
    const ConnectArgs& args, std::vector<std::unique_ptr<Link>> control,
    const std::shared_ptr<Relay>& relay) {
  RdmaLinks links(control.size());
  for (std::size_t r = 0; r < control.size(); ++r) {
    if (control[r] == nullptr) continue;
    RdmaLinkArgs link;
    link.rank = args.rank;
    link.peer = static_cast<int>(r);
    link.rail = rail_;
    link.control = std::move(control[r]);
    link.events = args.events;
    link.clock = args.clock;
    link.places = places_;
    link.keep_alive = relay;
    links[r] = std::make_unique<RdmaLink>(std::move(link));
    links[r]->Begin();
    relay->SetLink(static_cast<int>(r), links[r].get());
  }
  return links;
}

void RdmaEndpoint::SetUp(const ConnectArgs& args,
                         const RdmaLinks& links) const {
  for (;;) {
    bool moved = false;
    bool pending = false;
    const bool late = args.clock->Now() >= args.deadline;
    for (std::size_t r = 0; r < links.size(); ++r) {
      RdmaLink* const link = links[r].get();
      if (link == nullptr) continue;
      moved |= link->PollSetup();
      if (late) {
        link->Reject(Status(StatusCode::kDeadlineExceeded,
                            StrCat("rank ", args.rank, " waited for rank ", r,
                                   " to set up RDMA, in vain")));
      }
      pending |= !link->settled() && !late;
    }
    if (!pending) return;
    args.poller->Poll(moved ? std::chrono::milliseconds(0) : kNap);
  }
}

Result<std::vector<std::unique_ptr<Link>>> RdmaEndpoint::Sort(
    const ConnectArgs& args, RdmaLinks links) {
  std::vector<std::unique_ptr<Link>> works(links.size());
  Status failed;
  if (args.unlinked != nullptr) args.unlinked->resize(links.size());
  for (std::size_t r = 0; r < links.size(); ++r) {
    if (links[r] == nullptr) continue;
    if (links[r]->outcome() == RdmaLink::Outcome::kWorks) {
      links[r]->Adopt();
      works[r] = std::move(links[r]);
    } else if (args.unlinked != nullptr) {
      (*args.unlinked)[r] = links[r]->why();
    } else if (failed.ok()) {
      failed = links[r]->why();
    }
  }
  if (failed.ok()) return works;
  if (args.links_of_failure != nullptr) {
    *args.links_of_failure = std::move(works);
  }
  return failed;
}

// The addresses by which TCP reaches this rank, without ports, best first.
std::vector<std::string> ReachedBy(const TransportOptions& options) {
  std::vector<std::string> hosts;
  const auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return hosts;
  const auto addresses = ChooseAddresses(
      interfaces.value(), options.socket_ifname, options.ip_version);
  if (!addresses.ok()) return hosts;
  for (const RatedAddress& rated : addresses.value()) {
    const auto host = ParseHostPort(rated.address.ToString());
    if (host.ok()) hosts.push_back(host.value().host);
  }
  return hosts;
}

}  // namespace

Result<RdmaChoice> ChooseRailFor(const TransportOptions& options,
                                 const VerbsApi& verbs) {
  const auto devices = ListRdmaDevices(verbs);
  if (!devices.ok()) {
    return Status(StatusCode::kUnimplemented, devices.status().message());
  }
  if (devices.value().empty()) {
    return Status(StatusCode::kUnimplemented, "there is no RDMA device");
  }
  return ChooseRail(devices.value(),
                    {options.rdma_devices, ReachedBy(options), options.rank});
}

Result<std::unique_ptr<Endpoint>> OpenRdma(
    const TransportOptions& options, std::shared_ptr<const VerbsApi> verbs) {
  auto choice = ChooseRailFor(options, *verbs);
  if (!choice.ok()) return choice.status();
  // One connection per peer: control messages are all that it carries.
  TransportOptions over_tcp = options;
  over_tcp.connections = 0;
  over_tcp.io_threads = 0;
  auto tcp = kTcpTransport.open(over_tcp);
  if (!tcp.ok()) return tcp.status();
  auto rail = Rail::Open(
      {std::move(verbs), std::move(choice).value(),
       std::max(1, options.ranks - 1),
       kImmediatesWithoutNotices +
           (options.placed_slot_bytes > 0 ? options.placed_notices : 0),
       options.rdma_traffic_class, options.rdma_retry_seconds});
  if (!rail.ok()) return rail.status();
  std::shared_ptr<RdmaPlaces> places;
  if (options.placed_slot_bytes > 0) {
    auto made =
        RdmaPlaces::Create({rail.value(), options.ranks,
                            options.placed_slot_bytes, options.placed_notices});
    if (!made.ok()) return made.status();
    places = std::move(made).value();
  }
  return std::unique_ptr<Endpoint>(std::make_unique<RdmaEndpoint>(
      options, std::move(tcp).value(), std::move(rail).value(),
      std::move(places)));
}

}  // namespace gradientflow
