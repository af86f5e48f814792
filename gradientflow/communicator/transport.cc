#include "gradientflow/communicator/transport.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "gradientflow/base/secret.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_layout.h"
#include "gradientflow/communicator/card.h"
#include "gradientflow/communicator/cores.h"
#include "gradientflow/communicator/introduction.h"
#include "gradientflow/communicator/neighbours.h"
#include "gradientflow/config/connections.h"
#include "transports/endpoint.h"
#include "transports/link_source.h"
#include "transports/registry/registry.h"
#include "transports/rendezvous/rendezvous.h"

// How ranks join, in the order of Join():
//
//   MakeOffers()    opens the transports: this rank's endpoints and card
//   MeetAll()       shows the card, and learns what to know of the others
//                   (introduction.h): their hosts, and where to connect
//   ConnectLinks()  connects, and hands the links to the fabric
namespace gradientflow {
namespace {

// With more ranks, "auto" links them when they need each other.
constexpr int kMostAllLinked = 64;

// What this rank offers to other ranks before it knows them.
struct Offer {
  const TransportKind* kind = nullptr;
  std::shared_ptr<Endpoint> endpoint;
};
struct Offers {
  std::vector<Offer> endpoints;  // In the order of the registry.
  Card card;
};

TransportOptions TransportOptionsOf(const Options& options) {
  TransportOptions of;
  of.arena_bytes = options.arena_bytes;
  of.fifo_bytes = options.fifo_bytes;
  of.connections = ConnectionsPerPeer(options);
  of.socket_ifname = options.socket_ifname;
  of.ip_version = options.socket_family == AddressFamily::kIpv4   ? 4
                  : options.socket_family == AddressFamily::kIpv6 ? 6
                                                                  : 0;
  of.advertise_address = options.advertise_address;
  of.first_port = options.port_range.first;
  of.last_port = options.port_range.last;
  of.socket_buffer_bytes = options.socket_buffer_bytes;
  of.io_threads = options.io_threads;
  of.rank = options.rank;
  of.ranks = options.size;
  of.own = options.transport_settings;
  of.placed_slot_bytes = PlacedSlotBytes(options.size, options.segment_bytes,
                                         options.segments_in_flight);
  of.placed_notices = PlacedNotices(options.size, options.segment_bytes,
                                    options.segments_in_flight);
  return of;
}

bool LinksWhenNeeded(const Options& options) {
  return options.connect == ConnectMode::kNeeded ||
         (options.connect == ConnectMode::kAuto &&
          options.size > kMostAllLinked);
}

// The only transport that the options allow, or null if they allow all.
const TransportKind* OnlyTransport(const Options& options) {
  return FindTransport(options.fabric);
}

// Connections to a rank of another host.
int LanesOf(const Options& options) { return 1 + ConnectionsPerPeer(options); }

// Opens the transports that the options allow. The last one of them reaches
// every rank, so it has to open; if another one fails, the ranks use those that
// are left. A rank that has nothing to offer says so on its card, because the
// others would wait for it.
Offers MakeOffers(const JoinArgs& args) {
  const Options& options = *args.options;
  const TransportKind* const only = OnlyTransport(options);
  Offers offers;
  Card& card = offers.card;
  for (const TransportKind* kind : Transports()) {
    if (only != nullptr && kind != only) continue;
    Result<std::unique_ptr<Endpoint>> opened =
        kind->open(TransportOptionsOf(options));
    if (opened.ok()) {
      std::shared_ptr<Endpoint> endpoint = std::move(opened).value();
      card.addresses[kind->name] = endpoint->address();
      offers.endpoints.push_back({kind, std::move(endpoint)});
    } else if (kind == only || kind == Transports().back()) {
      card.failure = opened.status();
    } else {
      // Most hosts lack some hardware, which deserves no warning.
      const bool absent = opened.status().code() == StatusCode::kUnimplemented;
      args.logger->Log(absent ? LogLevel::kInfo : LogLevel::kWarning,
                       StrCat("going on without ", kind->name,
                              " links: ", opened.status().message()));
    }
  }
  card.host_id = HostId(options.host_id);
  const Result<Bits256> nonce = RandomBits();
  if (nonce.ok()) {
    card.nonce = nonce.value();
  } else {
    card.failure = nonce.status();
  }
  card.agreement = args.agreement;
  std::size_t own = 0;
  for (const Offer& offer : offers.endpoints) {
    own += offer.endpoint->OwnDescriptors();
  }
  const std::size_t room =
      RoomForDescriptors(own + MostDescriptors(options.size, LanesOf(options)));
  card.descriptors = room - std::min(own, room);
  return offers;
}

// Returns what only ranks of this job know before they meet. A framework's
// exchange keeps strangers out by itself, so with it only the nonces of the
// cards are secret.
Bits256 SecretOf(const JoinArgs& args) {
  const Options& options = *args.options;
  return args.exchange ? Bits256{}
                       : JobSecret(options.job_token, options.job_run);
}

// The framework's exchange brings all cards to all ranks.
Result<std::string> IntroducedBy(const JoinArgs& args, const std::string& card,
                                 const Introduce& introduce) {
  const Options& options = *args.options;
  const Result<std::vector<std::string>> cards = args.exchange(card);
  if (!cards.ok()) return cards.status();
  if (cards.value().size() != static_cast<std::size_t>(options.size)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the exchange brought ", cards.value().size(),
                         " cards, expected ", options.size));
  }
  Result<std::vector<std::string>> texts =
      introduce(cards.value(), {options.rank});
  if (!texts.ok()) return texts.status();
  return std::move(texts.value().front());
}

// One line per job, since all ranks have the same token.
void WarnOfGuessableToken(const JoinArgs& args) {
  const Options& options = *args.options;
  if (args.exchange || options.rank != 0 || options.guessable_token.empty() ||
      options.job_token != options.guessable_token ||
      !options.ReachesOtherHosts()) {
    return;
  }
  args.logger->Log(
      LogLevel::kWarning,
      StrCat("the launcher's id of the job, which other users can guess, is "
             "all that keeps strangers out of rendezvous=",
             options.rendezvous,
             ": set GRADIENTFLOW_JOB_TOKEN on all ranks, for example to what "
             "`openssl rand -hex 16` prints"));
}

Result<Introduction> MeetAll(const JoinArgs& args, const Card& mine,
                             Clock::Time deadline,
                             std::unique_ptr<RendezvousWatch>* watch) {
  const Options& options = *args.options;
  const Introduce introduce = [&](const std::vector<std::string>& cards,
                                  const std::vector<int>& ranks) {
    return IntroduceRanks(
        {options.fabric, LanesOf(options), LinksWhenNeeded(options)}, cards,
        ranks);
  };
  RendezvousOptions rendezvous;
  rendezvous.address = options.rendezvous;
  rendezvous.secret = SecretOf(args);
  rendezvous.rank = options.rank;
  rendezvous.size = options.size;
  rendezvous.deadline = deadline;
  rendezvous.watch = watch;
  rendezvous.check_card = [&](int rank, const std::string& card) {
    return CheckBesideFirst(mine, rank, card);
  };
  rendezvous.on_left_out = [&](const Status& why) {
    args.logger->Log(LogLevel::kWarning,
                     StrCat("left out of the job, and awaiting the right one: ",
                            why.message()));
  };
  const Result<std::string> text =
      args.exchange
          ? IntroducedBy(args, EncodeCard(mine), introduce)
          : Meet(rendezvous, EncodeCard(mine), introduce, *args.clock);
  if (!text.ok()) {
    // This rank's own failure says more than what others report of it.
    GF_RETURN_IF_ERROR(CheckFailure(options.rank, mine));
    return text.status();
  }
  return DecodeIntroduction(options.size, text.value());
}

// Returns the addresses that a transport connects to: not those of peers that
// are `taken`.
std::vector<std::string> AddressesLeft(const Introduction& introduction,
                                       const TransportKind& kind,
                                       const std::vector<bool>& taken) {
  std::vector<std::string> addresses = introduction.AddressesOf(kind.name);
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    if (taken[r]) addresses[r].clear();
  }
  return addresses;
}

// Says which peers one transport could not link to, so that they are left to
// the next one. Both ranks of such a pair know of it.
void WarnOfUnlinked(const JoinArgs& args, const std::vector<Status>& unlinked,
                    const TransportKind& next) {
  std::string others;
  const Status* first = nullptr;
  for (std::size_t r = 0; r < unlinked.size(); ++r) {
    if (unlinked[r].ok()) continue;
    others += StrCat(others.empty() ? "" : ", ", r);
    if (first == nullptr) first = &unlinked[r];
  }
  if (first == nullptr) return;
  args.logger->Log(LogLevel::kWarning,
                   StrCat("going on by ", next.name, " with rank(s) ", others,
                          ": ", first->message()));
}

void LogChoices(const JoinArgs& args, const Offer& offer) {
  const std::string choices = offer.endpoint->Choices();
  if (choices.empty()) return;
  args.logger->Log(LogLevel::kInfo, StrCat(offer.kind->name, ": ", choices));
}

// Returns whether one transport links this rank to all others, except those
// with which it shares memory.
bool LinksAll(const std::vector<std::unique_ptr<Link>>& links,
              const CallGroup& group, std::string_view kind) {
  for (int r = 0; r < group.size; ++r) {
    if (r == group.rank || ShareMemory(group, group.rank, r)) continue;
    const Link* const link = links[static_cast<std::size_t>(r)].get();
    if (link == nullptr || link->kind() != kind) return false;
  }
  return true;
}

// Takes over the ways to reach peers' memory that one transport has, if any.
void TakeMemory(const Offer& offer,
                const std::vector<std::unique_ptr<Link>>& links,
                Transport* transport) {
  if (offer.endpoint->arena() != nullptr) {
    transport->keep_alive.push_back(offer.endpoint);
    transport->arena = offer.endpoint->arena();
  }
  const std::string_view kind = offer.kind->name;
  const bool used =
      std::any_of(links.begin(), links.end(), [&](const auto& link) {
        return link != nullptr && link->kind() == kind;
      });
  if (!used) return;
  if (offer.endpoint->places() != nullptr) {
    transport->keep_alive.push_back(offer.endpoint);
    transport->places = offer.endpoint->places();
    transport->places_all = LinksAll(links, transport->group, kind);
  }
  if (offer.endpoint->writes() != nullptr) {
    transport->keep_alive.push_back(offer.endpoint);
    transport->writes = offer.endpoint->writes();
  }
}

// Returns whether all ranks have offered each other a transport that places
// messages. They find out later whether it works between them.
bool AllOfferPlaces(const Introduction& introduction, const Offers& offers,
                    int ranks) {
  return std::any_of(
      offers.endpoints.begin(), offers.endpoints.end(),
      [&](const Offer& offer) {
        const auto found = introduction.addresses.find(offer.kind->name);
        return offer.endpoint->places() != nullptr &&
               found != introduction.addresses.end() &&
               found->second.size() + 1 == static_cast<std::size_t>(ranks);
      });
}

struct Patience {
  Clock::Time deadline{};
  std::function<Status()> look;  // See ConnectArgs.
};

// Connects the transport with the shortest reach first, since the next one
// takes over what it cannot link. If one fails, the others still connect, so
// that all peers can be told why.
Status ConnectLinks(const JoinArgs& args, const Introduction& introduction,
                    const Offers& offers, const Patience& patience,
                    Transport* transport) {
  const CallGroup& group = transport->group;
  const auto ranks = static_cast<std::size_t>(group.size);
  const Bits256 secret = SessionSecret(SecretOf(args), introduction);
  Fabric& fabric = *transport->fabric;
  std::vector<std::unique_ptr<Link>> links(ranks);
  std::vector<bool> taken(ranks);  // By a transport, which may have failed.
  std::unique_ptr<LinkSource> source;
  Status failed;
  for (const Offer& offer : offers.endpoints) {
    if (offer.kind->host_id != nullptr && !group.hosts_share) continue;
    const bool last = &offer == &offers.endpoints.back();
    std::vector<Status> unlinked;
    std::vector<std::unique_ptr<Link>> made(ranks);
    const ConnectArgs connect{group.rank,
                              group.size,
                              AddressesLeft(introduction, *offer.kind, taken),
                              secret,
                              patience.deadline,
                              args.clock,
                              &fabric.poller(),
                              &fabric,
                              last ? nullptr : &unlinked,
                              &made,
                              last && group.few_links,
                              CoresOf(introduction.local),
                              patience.look};
    auto connected = offer.endpoint->Connect(connect);
    if (connected.ok()) {
      made = std::move(connected).value();
      LogChoices(args, offer);
    } else if (failed.ok()) {
      failed = connected.status();
    }
    if (failed.ok() && connect.more_later) {
      auto later = offer.endpoint->TakeLinkSource(connect, &fabric);
      failed = later.status();
      if (later.ok()) source = std::move(later).value();
      transport->address = offer.endpoint->address();
    }
    if (!last) WarnOfUnlinked(args, unlinked, *(&offer + 1)->kind);
    unlinked.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      if (links[r] == nullptr) links[r] = std::move(made[r]);
      transport->shares &= unlinked[r].ok() || offer.kind->host_id == nullptr;
      taken[r] =
          taken[r] || (!connect.addresses[r].empty() && unlinked[r].ok());
    }
    TakeMemory(offer, links, transport);
  }
  fabric.Connect(std::move(links), std::move(source));
  // Ranks that are linked already learn the reason.
  if (!failed.ok()) fabric.Fail(failed);
  if (!failed.ok()) fabric.Poll();
  return failed;
}

// The connections of a watch are open already. If they leave rank 0 too few
// descriptors for its links, it leaves the watch, which is then over for all.
bool MayWatch(const Options& options, const CallGroup& group) {
  const auto linked = NeighboursOf(group, group.rank, group.few_links).size();
  const std::size_t wanted =
      MostDescriptors(static_cast<int>(linked), LanesOf(options));
  return options.rank != 0 || RoomForDescriptors(wanted) >= wanted;
}

// Rank 0 has its links. If a rank dies that its peers have not reached yet,
// perhaps only rank 0 learns of it, so rank 0 goes on listening until all ranks
// are linked. Ranks that run out of time say so themselves.
Status AwaitOthers(const JoinArgs& args, Clock::Time deadline, Fabric& fabric,
                   RendezvousWatch& watch) {
  constexpr std::chrono::milliseconds kLongestNap(10);
  constexpr std::chrono::milliseconds kTickEvery(100);
  const Clock& clock = *args.clock;
  Clock::Time tick_at = clock.Now() + kTickEvery;
  std::chrono::milliseconds nap(1);
  for (;;) {
    const Status seen = watch.Look();
    if (!seen.ok()) fabric.Fail(seen);
    fabric.Poll();
    GF_RETURN_IF_ERROR(fabric.status());
    const Clock::Time now = clock.Now();
    if (watch.Over() || now >= deadline) return Status();
    if (now >= tick_at) {
      tick_at = now + kTickEvery;
      fabric.Tick(false);
    }
    fabric.Wait(nap);
    nap = std::min(nap * 2, kLongestNap);
  }
}

}  // namespace

int ConnectionsPerPeer(const Options& options) {
  if (options.connections > 0) return options.connections;
  return ConnectionsByRanks(options.size);
}

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
  WarnOfGuessableToken(args);
  const Offers offers = MakeOffers(args);
  std::unique_ptr<RendezvousWatch> watch;
  const Result<Introduction> introduction =
      MeetAll(args, offers.card, deadline, &watch);
  if (!introduction.ok()) return introduction.status();
  transport.group = GroupOf(options.rank, introduction.value());
  transport.local = introduction.value().local;
  transport.group.few_links = LinksWhenNeeded(options);
  const bool place = AllOfferPlaces(introduction.value(), offers, options.size);
  const bool one_host = transport.group.topology.IsOneHost();
  transport.group.all_place = place && !transport.group.hosts_share;
  transport.group.hosts_place =
      place && transport.group.hosts_share && !one_host;
  if (const int rank = introduction.value().without_memory; rank >= 0) {
    args.logger->Log(LogLevel::kWarning,
                     StrCat("ranks of a host talk by TCP, since rank ", rank,
                            " cannot share memory"));
  }
  if (watch != nullptr && !MayWatch(options, transport.group)) {
    watch->Leave(Status());
    watch = nullptr;
  }
  const std::function<Status()> look = [&watch] { return watch->Look(); };
  Status connected =
      ConnectLinks(args, introduction.value(), offers,
                   {deadline, watch != nullptr ? look : nullptr}, &transport);
  // A rank that is linked to all others learns of deaths from its links.
  if (connected.ok() && watch != nullptr && options.rank == 0 &&
      transport.group.few_links) {
    connected = AwaitOthers(args, deadline, *transport.fabric, *watch);
  }
  if (watch != nullptr) watch->Leave(connected);
  if (!connected.ok()) return connected;
  return transport;
}

}  // namespace gradientflow
