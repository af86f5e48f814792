#include "transports/rdma/rdma_endpoint.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/choose.h"
#include "transports/rdma/devices.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rails_link.h"
#include "transports/rdma/rdma_link.h"
#include "transports/rdma/rdma_places.h"
#include "transports/rdma/rdma_relay.h"
#include "transports/rdma/settings.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/create.h"
#include "transports/tcp/interfaces.h"

// How ranks are linked by RDMA:
//
//   Connect()   TCP connections to all of them, as TCP's endpoint makes them;
//               each becomes the control link of an RdmaLink, or of one for
//               each rail if both ranks have several (RailsLink)
//   SetUp()     drives these until each works or does not
//   Sort()      those that work are adopted. Of the others both ranks know why;
//               the next transport links them.
//
// A rail that does not open is left out, and so is one that does not work
// between two ranks, unless it is their first. A peer that does not say by the
// deadline what has become of a rail may use it or not, so that ends the job.
namespace gradientflow {
namespace {

// How long the poller may sleep while links are set up.
constexpr std::chrono::milliseconds kNap(1);
// How much longer than until the deadline to wait for the peers' last words. A
// rank that drives its set-up has them ready after the time that a probe gets.
constexpr std::chrono::seconds kLastWordsPatience(5);
// Stands in an address before the number of rails, if there are several.
constexpr char kRailsMark = '#';

using RailList = std::vector<std::shared_ptr<Rail>>;

// Splits what RdmaEndpoint::address() returns into TCP's address and the number
// of rails.
std::pair<std::string, std::size_t> ParseAddress(const std::string& address) {
  const std::size_t mark = address.rfind(kRailsMark);
  if (mark == std::string::npos) return {address, 1};
  const int rails = mark + 2 == address.size() ? address[mark + 1] - '0' : 1;
  return {address.substr(0, mark),
          static_cast<std::size_t>(std::clamp(rails, 1, int{kMostRails}))};
}

// A peer that is being linked.
struct Pair {
  std::unique_ptr<RailsLink> all;                // Null if there is one link.
  std::vector<std::unique_ptr<RdmaLink>> links;  // By rail; none: no peer.

  // Whether both ranks know what has become of each rail.
  bool settled() const {
    return std::all_of(links.begin(), links.end(),
                       [](const auto& link) { return link->settled(); });
  }
};

Status InVain(const ConnectArgs& args, std::size_t peer, const char* to_what) {
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("rank ", args.rank, " waited for rank ", peer, " to ",
                       to_what, ", in vain"));
}

class RdmaEndpoint final : public Endpoint, private WriteCounter {
 public:
  RdmaEndpoint(std::unique_ptr<Endpoint> tcp, RailList rails,
               std::shared_ptr<RdmaPlaces> places, std::string left_out)
      : tcp_(std::move(tcp)),
        rails_(std::move(rails)),
        places_(std::move(places)),
        left_out_(std::move(left_out)) {}

  std::string address() const override {
    if (rails_.size() == 1) return tcp_->address();
    return StrCat(tcp_->address(), std::string(1, kRailsMark), rails_.size());
  }
  Result<std::vector<std::unique_ptr<Link>>> Connect(
      const ConnectArgs& args) override;
  // Links that are made later are TCP's.
  Result<std::unique_ptr<LinkSource>> TakeLinkSource(
      const ConnectArgs& args, LinkSource::Sink* sink) override {
    return tcp_->TakeLinkSource(OverTcp(args), sink);
  }
  std::string Choices() const override;
  RemotePlaces* places() override { return places_.get(); }
  WriteCounter* writes() override { return this; }

 private:
  RemoteWrites Count() override;
  static ConnectArgs OverTcp(const ConnectArgs& args);
  Pair MakePair(const ConnectArgs& args, int peer,
                std::unique_ptr<Link> control,
                const std::shared_ptr<RdmaRelay>& relay);
  void SetUp(const ConnectArgs& args, const std::vector<Pair>& pairs) const;
  std::unique_ptr<Link> Adopt(int peer, Pair pair, RdmaRelay* relay);
  Result<std::vector<std::unique_ptr<Link>>> Sort(const ConnectArgs& args,
                                                  std::vector<Pair> pairs,
                                                  RdmaRelay* relay);

  const std::unique_ptr<Endpoint> tcp_;
  const RailList rails_;
  const std::shared_ptr<RdmaPlaces> places_;
  std::string left_out_;  // Rails that do not work, for the log.
};

RemoteWrites RdmaEndpoint::Count() {
  RemoteWrites all = rails_.front()->Count();
  for (std::size_t i = 1; i < rails_.size(); ++i) {
    const RemoteWrites more = rails_[i]->Count();
    all.data += more.data;
    all.control += more.control;
    all.bytes += more.bytes;
    if (more.retries) all.retries = all.retries.value_or(0) + *more.retries;
  }
  return all;
}

std::string RdmaEndpoint::Choices() const {
  std::string text;
  for (const auto& rail : rails_) {
    text += StrCat(text.empty() ? "" : "; ", rail->name(), ": ",
                   rail->args().choice.why);
  }
  return text + left_out_;
}

ConnectArgs RdmaEndpoint::OverTcp(const ConnectArgs& args) {
  ConnectArgs over_tcp = args;
  for (std::string& address : over_tcp.addresses) {
    address = ParseAddress(address).first;
  }
  return over_tcp;
}

Result<std::vector<std::unique_ptr<Link>>> RdmaEndpoint::Connect(
    const ConnectArgs& args) {
  auto relay = std::make_shared<RdmaRelay>(args.size);
  ConnectArgs over_tcp = OverTcp(args);
  over_tcp.events = relay.get();
  over_tcp.unlinked = nullptr;
  over_tcp.links_of_failure = nullptr;
  auto control = tcp_->Connect(over_tcp);
  if (!control.ok()) return control.status();
  const bool any =
      std::any_of(control.value().begin(), control.value().end(),
                  [](const auto& link) { return link != nullptr; });
  if (!any) return std::move(control).value();
  std::vector<Pair> pairs(control.value().size());
  for (std::size_t r = 0; r < pairs.size(); ++r) {
    if (control.value()[r] == nullptr) continue;
    pairs[r] = MakePair(args, static_cast<int>(r),
                        std::move(control.value()[r]), relay);
  }
  for (const auto& rail : rails_) {
    std::vector<std::weak_ptr<Rail>> others(rails_.begin(), rails_.end());
    std::erase_if(others, [&](const auto& o) { return o.lock() == rail; });
    rail->SetOthers(std::move(others));
    GF_RETURN_IF_ERROR(rail->Start(args.poller));
  }
  SetUp(args, pairs);
  return Sort(args, std::move(pairs), relay.get());
}

Pair RdmaEndpoint::MakePair(const ConnectArgs& args, int peer,
                            std::unique_ptr<Link> control,
                            const std::shared_ptr<RdmaRelay>& relay) {
  const std::size_t rails = std::min(
      rails_.size(),
      ParseAddress(args.addresses[static_cast<std::size_t>(peer)]).second);
  Pair pair;
  if (rails > 1) {
    pair.all = std::make_unique<RailsLink>(peer, rails, std::move(control),
                                           args.events);
  }
  for (std::size_t i = 0; i < rails; ++i) {
    RdmaLinkArgs link;
    link.rank = args.rank;
    link.peer = peer;
    link.rail = rails_[i];
    link.rail_number = i;
    link.measures = rails > 1;
    link.control = pair.all ? pair.all->ControlOf(i) : std::move(control);
    link.events = pair.all ? pair.all->EventsOf(i) : args.events;
    link.clock = args.clock;
    link.places = places_;
    link.keep_alive = relay;
    pair.links.push_back(std::make_unique<RdmaLink>(std::move(link)));
  }
  for (const auto& link : pair.links) link->Begin();
  // The first one last: the relay waits for it.
  for (std::size_t i = rails; i-- > 0;) {
    relay->SetLink(peer, i, pair.links[i].get());
  }
  return pair;
}

// Returns when all of them are settled, or it is too late for those that are
// not.
void RdmaEndpoint::SetUp(const ConnectArgs& args,
                         const std::vector<Pair>& pairs) const {
  for (;;) {
    const Clock::Time late = args.clock->Now() - args.deadline;
    bool moved = false;
    bool pending = false;
    for (std::size_t r = 0; r < pairs.size(); ++r) {
      for (const auto& link : pairs[r].links) {
        moved |= link->PollSetup();
        if (late >= Clock::Time(0))
          link->GiveUp(InVain(args, r, "set up RDMA"));
      }
      pending |= !pairs[r].settled();
    }
    if (!pending || late >= kLastWordsPatience) return;
    args.poller->Poll(moved ? std::chrono::milliseconds(0) : kNap);
  }
}

// REQUIRES that the first rail works.
std::unique_ptr<Link> RdmaEndpoint::Adopt(int peer, Pair pair,
                                          RdmaRelay* relay) {
  if (pair.all == nullptr) {
    pair.links.front()->Adopt();
    return std::move(pair.links.front());
  }
  std::vector<std::unique_ptr<RdmaLink>> works;
  std::vector<std::unique_ptr<RdmaLink>> others;
  for (std::size_t i = 0; i < pair.links.size(); ++i) {
    std::unique_ptr<RdmaLink>& link = pair.links[i];
    if (link->outcome() == RdmaLink::Outcome::kWorks) {
      works.push_back(std::move(link));
      continue;
    }
    relay->SetLink(peer, i, nullptr);
    left_out_ += StrCat("; without ", rails_[i]->name(), " to rank ", peer,
                        ": ", link->why().message());
    others.push_back(std::move(link));
  }
  pair.all->Take(std::move(works), std::move(others));
  return std::move(pair.all);
}

Result<std::vector<std::unique_ptr<Link>>> RdmaEndpoint::Sort(
    const ConnectArgs& args, std::vector<Pair> pairs, RdmaRelay* relay) {
  std::vector<std::unique_ptr<Link>> works(pairs.size());
  Status failed;
  if (args.unlinked != nullptr) args.unlinked->resize(pairs.size());
  for (std::size_t r = 0; r < pairs.size(); ++r) {
    if (pairs[r].links.empty()) continue;
    const RdmaLink& first = *pairs[r].links.front();
    if (!pairs[r].settled()) {
      failed = InVain(args, r, "say whether RDMA works between them");
    } else if (first.outcome() == RdmaLink::Outcome::kWorks) {
      works[r] = Adopt(static_cast<int>(r), std::move(pairs[r]), relay);
    } else if (args.unlinked != nullptr) {
      (*args.unlinked)[r] = first.why();
    } else if (failed.ok()) {
      failed = first.why();
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

// Null if there are no placed messages. Every rail has to reach the slots, so
// one that cannot (say, for want of memory that may be locked) is dropped, and
// so are those after it; without the first there are none.
Result<std::shared_ptr<RdmaPlaces>> MakePlaces(const TransportOptions& options,
                                               RailList* rails,
                                               std::string* left_out) {
  if (options.placed_slot_bytes == 0) return std::shared_ptr<RdmaPlaces>();
  for (;;) {
    auto made =
        RdmaPlaces::Create({*rails, options.ranks, options.placed_slot_bytes,
                            options.placed_notices});
    if (made.ok() || rails->size() == 1) return made;
    *left_out += StrCat("; without ", rails->back()->name(), ": ",
                        made.status().message());
    rails->pop_back();
  }
}

}  // namespace

Result<std::vector<RdmaChoice>> ChooseRailsFor(const TransportOptions& options,
                                               const VerbsApi& verbs) {
  const auto devices = ListRdmaDevices(verbs);
  if (!devices.ok()) {
    return Status(StatusCode::kUnimplemented, devices.status().message());
  }
  if (devices.value().empty()) {
    return Status(StatusCode::kUnimplemented, "there is no RDMA device");
  }
  const auto settings = RdmaSettingsOf(options);
  if (!settings.ok()) return settings.status();
  return ChooseRails(devices.value(),
                     {settings.value().devices, ReachedBy(options),
                      options.rank, settings.value().ports});
}

Result<std::unique_ptr<Endpoint>> OpenRdma(
    const TransportOptions& options,
    const std::shared_ptr<const VerbsApi>& verbs) {
  const auto settings = RdmaSettingsOf(options);
  if (!settings.ok()) return settings.status();
  auto choices = ChooseRailsFor(options, *verbs);
  if (!choices.ok()) return choices.status();
  // One connection per peer: control messages are all that it carries.
  TransportOptions over_tcp = options;
  over_tcp.connections = 0;
  over_tcp.io_threads = 0;
  auto tcp = kTcpTransport.open(over_tcp);
  if (!tcp.ok()) return tcp.status();
  const int receives =
      kImmediatesWithoutNotices +
      (options.placed_slot_bytes > 0 ? options.placed_notices : 0);
  RailList rails;
  std::string left_out;
  Status failed;
  for (RdmaChoice& choice : choices.value()) {
    const std::string name = choice.device;
    auto rail = Rail::Open(
        {verbs, std::move(choice), std::max(1, options.ranks - 1), receives,
         settings.value().traffic_class, settings.value().retry_seconds});
    if (rail.ok()) {
      rails.push_back(std::move(rail).value());
    } else {
      if (failed.ok()) failed = rail.status();
      left_out += StrCat("; without ", name, ": ", rail.status().message());
    }
  }
  if (rails.empty()) return failed;
  auto places = MakePlaces(options, &rails, &left_out);
  if (!places.ok()) return places.status();
  return std::unique_ptr<Endpoint>(std::make_unique<RdmaEndpoint>(
      std::move(tcp).value(), std::move(rails), std::move(places).value(),
      std::move(left_out)));
}

}  // namespace gradientflow
