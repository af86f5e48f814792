#include "gradientflow/communicator/transport.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/card.h"
#include "kernels/kernels.h"
#include "transports/rendezvous/rendezvous.h"
#include "transports/shm/create.h"
#include "transports/tcp/create.h"

namespace gradientflow {
namespace {

constexpr int kFewRanks = 8;

// What this rank offers to others, before it knows them.
struct Offers {
  std::unique_ptr<TcpListener> tcp;
  std::shared_ptr<ShmHost> shm;
  Card card;
};

Status OfferShm(const JoinArgs& args, Offers* offers) {
  const Options& options = *args.options;
  ShmOptions shm;
  shm.arena_bytes = options.arena_bytes;
  shm.fifo_bytes = options.fifo_bytes;
  Result<std::unique_ptr<ShmHost>> host = ShmHost::Create(shm);
  if (host.ok()) {
    offers->shm = std::move(host).value();
    offers->card.shm_address = offers->shm->address();
  } else if (options.fabric == FabricKind::kShm) {
    return host.status();
  } else {
    args.logger->Log(LogLevel::kWarning,
                     "no shared memory, using TCP inside the host: " +
                         host.status().message());
  }
  return Status();
}

Status OfferTcp(const Options& options, Offers* offers) {
  TcpOptions tcp;
  // One lane more than connections for data: control messages go apart.
  tcp.lanes = 1 + (options.connections > 0     ? options.connections
                   : options.size <= kFewRanks ? 2
                                               : 1);
  tcp.socket_ifname = options.socket_ifname;
  tcp.family = options.socket_family == AddressFamily::kIpv4   ? 4
               : options.socket_family == AddressFamily::kIpv6 ? 6
                                                               : 0;
  tcp.socket_buffer_bytes = options.socket_buffer_bytes;
  Result<std::unique_ptr<TcpListener>> listener = TcpListener::Listen(tcp);
  if (!listener.ok()) return listener.status();
  offers->tcp = std::move(listener).value();
  offers->card.tcp_address = offers->tcp->address();
  return Status();
}

// A rank that has nothing to offer says so on its card, or the others would
// wait for it.
Offers MakeOffers(const JoinArgs& args) {
  const Options& options = *args.options;
  Offers offers;
  Status& failure = offers.card.failure;
  if (options.fabric != FabricKind::kTcp) failure = OfferShm(args, &offers);
  if (options.fabric != FabricKind::kShm && failure.ok()) {
    failure = OfferTcp(options, &offers);
  }
  offers.card.host_id =
      options.host_id.empty() ? ShmHost::HostId() : options.host_id;
  std::random_device random;
  offers.card.nonce = std::uint64_t{random()} << 32 | random();
  offers.card.agreement = args.agreement;
  return offers;
}

Result<std::vector<Card>> ExchangeWithAll(const JoinArgs& args,
                                          const Card& mine,
                                          Clock::Time deadline) {
  const Options& options = *args.options;
  const auto ranks = static_cast<std::size_t>(options.size);
  RendezvousOptions rendezvous;
  rendezvous.address = options.rendezvous;
  rendezvous.job_token = options.job_token;
  rendezvous.rank = options.rank;
  rendezvous.size = options.size;
  rendezvous.deadline = deadline;
  Result<std::vector<std::string>> texts =
      args.exchange ? args.exchange(EncodeCard(mine))
                    : ExchangeCards(rendezvous, EncodeCard(mine), *args.clock);
  if (!texts.ok()) return mine.failure.ok() ? texts.status() : mine.failure;
  if (texts.value().size() != ranks) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the exchange brought ", texts.value().size(),
                         " cards, expected ", ranks));
  }
  std::vector<Card> cards;
  for (int r = 0; r < options.size; ++r) {
    Result<Card> card = DecodeCard(r, texts.value()[r]);
    if (!card.ok()) return card.status();
    cards.push_back(std::move(card).value());
  }
  GF_RETURN_IF_ERROR(CheckFailures(cards));
  GF_RETURN_IF_ERROR(CheckAgreement(cards));
  return cards;
}

// Which ranks share a host, and whether hosts share memory. Depends on the
// cards alone, so all ranks come to the same.
CallGroup GroupOf(const Options& options, const std::vector<Card>& cards) {
  CallGroup group;
  group.rank = options.rank;
  group.size = options.size;
  std::map<std::string, int> hosts;
  std::map<int, int> ranks_of;
  group.hosts_share = true;
  for (const Card& card : cards) {
    const int host = hosts.emplace(card.host_id, static_cast<int>(hosts.size()))
                         .first->second;
    group.topology.host.push_back(host);
    group.hosts_share &=
        !card.shm_address.empty() && ++ranks_of[host] <= kernels::kMaxParties;
  }
  group.hosts_share &= hosts.size() < cards.size();
  group.all_share = group.hosts_share && hosts.size() == 1;
  return group;
}

Status CheckReachable(const Options& options, const CallGroup& group) {
  if (options.fabric != FabricKind::kShm || group.all_share) return Status();
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("fabric=shm needs all ranks on one host, in one network"
             " namespace and by one user; rank ",
             options.rank, " of ", options.size, " sees ranks elsewhere"));
}

Status ConnectLinks(const JoinArgs& args, const std::vector<Card>& cards,
                    const Offers& offers, Clock::Time deadline,
                    Transport* transport) {
  const CallGroup& group = transport->group;
  std::vector<std::string> shm_addresses(cards.size());
  std::vector<std::string> tcp_addresses(cards.size());
  for (int r = 0; r < group.size; ++r) {
    if (r == group.rank) continue;
    const bool near = group.hosts_share &&
                      group.topology.host[r] == group.topology.host[group.rank];
    (near ? shm_addresses : tcp_addresses)[r] =
        near ? cards[r].shm_address : cards[r].tcp_address;
  }
  const std::uint64_t key = SessionKey(cards);
  Fabric& fabric = *transport->fabric;
  std::vector<std::unique_ptr<Link>> links(cards.size());
  Status failed;
  if (offers.tcp != nullptr) {
    TcpConnectArgs tcp{group.rank, group.size, tcp_addresses,    key,
                       deadline,   args.clock, &fabric.poller(), &fabric};
    Result<std::vector<std::unique_ptr<Link>>> far = offers.tcp->Connect(tcp);
    failed = far.status();
    if (far.ok()) links = std::move(far).value();
  }
  if (group.hosts_share) {
    ShmConnectArgs shm{group.rank, group.size, shm_addresses,    key,
                       deadline,   args.clock, &fabric.poller(), &fabric,
                       failed};
    Result<std::vector<std::unique_ptr<Link>>> near = offers.shm->Connect(shm);
    failed = near.status();
    for (int r = 0; near.ok() && r < group.size; ++r) {
      if (links[r] == nullptr) links[r] = std::move(near.value()[r]);
    }
    transport->keep_alive = offers.shm;
    transport->arena = &offers.shm->arena();
  }
  fabric.Connect(std::move(links));
  if (!failed.ok()) {
    // Ranks of other hosts, that are linked already, hear why.
    fabric.Fail(failed);
    fabric.Poll();
  }
  return failed;
}

}  // namespace

Result<Transport> Join(const JoinArgs& args) {
  const Options& options = *args.options;
  Transport transport;
  transport.group.rank = options.rank;
  transport.group.size = options.size;
  Result<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  FabricOptions fabric_options;
  fabric_options.heartbeat_timeout =
      FromSeconds(options.heartbeat_timeout_seconds);
  transport.fabric =
      std::make_unique<Fabric>(options.rank, options.size, *args.clock,
                               std::move(poller).value(), fabric_options);
  if (options.size == 1) {
    transport.group.topology.host = {0};
    return transport;
  }
  const Clock::Time deadline =
      args.clock->Now() + FromSeconds(options.join_timeout_seconds);
  const Offers offers = MakeOffers(args);
  Result<std::vector<Card>> cards =
      ExchangeWithAll(args, offers.card, deadline);
  if (!cards.ok()) return cards.status();
  transport.group = GroupOf(options, cards.value());
  GF_RETURN_IF_ERROR(CheckReachable(options, transport.group));
  GF_RETURN_IF_ERROR(
      ConnectLinks(args, cards.value(), offers, deadline, &transport));
  return transport;
}

}  // namespace gradientflow
