#include "transports/tcp/tcp_link_source.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How a link is made while the job runs:
//
//   Dial()      this rank wants one
//   OnEvents()  the poller says that a socket is ready
//   Poll()      it is time for an attempt, or to drop silent strangers
//   Round()     what both come to: one round of the LaneMaker
//   OnLanes()   hands the link to the fabric
namespace gradientflow {
namespace {

// The longest time between two looks at what is under way.
constexpr std::chrono::milliseconds kLookEvery(100);
// A job runs for days, and its ports stay open.
constexpr std::size_t kMostStrangers = 64;

}  // namespace

Result<std::unique_ptr<LinkSource>> TcpLinkSource::Create(Args args) {
  auto interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  Result<ReadySet> ready = ReadySet::Create();
  if (!ready.ok()) return ready.status();
  Poller* const poller = args.job.poller;
  std::unique_ptr<TcpLinkSource> source(
      new TcpLinkSource(std::move(args), std::move(ready).value(),
                        std::move(interfaces).value()));
  GF_RETURN_IF_ERROR(
      poller->Add(source->ready_.fd(), EPOLLIN, source.get(), 0));
  GF_RETURN_IF_ERROR(source->Watch(source->job_.clock->Now()));
  return std::unique_ptr<LinkSource>(std::move(source));
}

TcpLinkSource::TcpLinkSource(Args args, ReadySet ready,
                             std::vector<InterfaceAddress> interfaces)
    : options_(std::move(args.options)),
      job_(std::move(args.job)),
      sink_(args.sink),
      listeners_(std::move(args.listeners)),
      io_(std::move(args.io)),
      ready_(std::move(ready)),
      maker_(ForMaker(args.rails, std::move(interfaces))),
      peers_(static_cast<std::size_t>(job_.size)) {
  for (int r = 0; r < job_.size; ++r) {
    at(r).address = job_.addresses[static_cast<std::size_t>(r)];
    at(r).linked = r == job_.rank || !at(r).address.empty();
  }
}

TcpLinkSource::~TcpLinkSource() { job_.poller->Remove(ready_.fd()); }

LaneMaker::Args TcpLinkSource::ForMaker(
    int rails, std::vector<InterfaceAddress> interfaces) {
  LaneMaker::Args maker;
  maker.options = options_;
  maker.rank = job_.rank;
  maker.size = job_.size;
  maker.secret = job_.secret;
  maker.clock = job_.clock;
  maker.rails = rails;
  maker.listeners = &listeners_;
  maker.interfaces = std::move(interfaces);
  maker.most_strangers = kMostStrangers;
  maker.sink = this;
  return maker;
}

Status TcpLinkSource::Learn(const std::vector<std::string>& addresses) {
  if (addresses.size() != peers_.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected the addresses of ", peers_.size(),
                         " ranks, seen ", addresses.size()));
  }
  for (int r = 0; r < job_.size; ++r) {
    Peer& peer = at(r);
    const std::string& address = addresses[static_cast<std::size_t>(r)];
    if (!peer.address.empty() || address.empty()) continue;
    if (!peer.linked) GF_RETURN_IF_ERROR(maker_.Know(r, address));
    peer.address = address;
  }
  due_ = Clock::Time{};
  return Status();
}

void TcpLinkSource::Dial(int peer) {
  if (at(peer).linked || std::exchange(at(peer).wanted, true)) return;
  maker_.Dial(peer);
  due_ = Clock::Time{};
}

std::string TcpLinkSource::AddressOf(int peer) const {
  return at(peer).address.empty() ? "address unknown" : at(peer).address;
}

std::string TcpLinkSource::TroubleWith(int peer) const {
  if (!maker_.IsDialling(peer)) return "";
  return maker_.TroubleWith(peer) + maker_.TroubleAtTheDoor();
}

std::chrono::nanoseconds TcpLinkSource::Patience() const {
  if (!busy()) return std::chrono::hours(1);
  return std::max(due_ - job_.clock->Now(), Clock::Time{});
}

bool TcpLinkSource::Poll() {
  if (!busy() || failed_) return false;
  const Clock::Time now = job_.clock->Now();
  return now >= due_ && Round(now);
}

bool TcpLinkSource::OnEvents(std::uint64_t cookie, std::uint32_t events) {
  static_cast<void>(cookie);
  static_cast<void>(events);
  return !failed_ && Round(job_.clock->Now());
}

Status TcpLinkSource::OnLanes(int peer, std::vector<Socket> lanes) {
  at(peer).linked = true;
  for (const Socket& lane : lanes) ready_.Forget(lane.fd());
  auto made = LinkOnLanes(peer, std::move(lanes), job_, io_);
  if (!made.ok()) return made.status();
  sink_->OnLink(peer, std::move(made).value());
  return Status();
}

// Lanes of such a peer are welcome all the same, should it be alive. A firewall
// may refuse for a peer that computes for minutes before it connects: there the
// fabric's time-out decides.
void TcpLinkSource::GiveUpOnTheGone() {
  for (const PeerRefusal& gone : maker_.Refusals()) {
    if (!gone.certain || gone.Lasted() < kRefusedTooLong) continue;
    maker_.StopDialling(gone.peer);
    sink_->OnGone(gone.peer,
                  Status(StatusCode::kUnavailable,
                         StrCat("rank ", gone.peer, " (", at(gone.peer).address,
                                ") accepts no links: ", gone.trouble)));
  }
}

Status TcpLinkSource::Watch(Clock::Time now) {
  const std::vector<pollfd> wanted = maker_.Descriptors(now);
  for (const Socket& listener : listeners_) {
    if (maker_.door_shut()) ready_.Forget(listener.fd());
  }
  return ready_.Watch(wanted);
}

// Returns whether anything moved.
bool TcpLinkSource::Round(Clock::Time now) {
  const Result<bool> moved = maker_.Round(now, 0);
  Status status = moved.status();
  if (status.ok() && !moved.value()) GiveUpOnTheGone();
  if (status.ok()) status = Watch(now);
  due_ = maker_.DueBy(now + kLookEvery);
  if (!status.ok()) {
    failed_ = true;
    sink_->OnFailed(status);
  }
  return moved.ok() && moved.value();
}

}  // namespace gradientflow
