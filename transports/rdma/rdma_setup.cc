#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/rdma_link.h"

// How two ranks find out whether RDMA works between them, by messages on their
// TCP connection:
//
//   kOffer ──> <── kOffer     queue pairs, addresses, memory
//   kReady ──> <── kReady     the queue pairs are connected
//   probe  ══> <══ probe      a whole slot of the ring, by RDMA
//   kPassed ─> <── kPassed    mine has arrived and yours has come: it works
//
// Either may say kFailed instead, until it has said kPassed. Both have said
// kPassed, or there is no link, so the two ranks agree in any case. A rank that
// waits for its peer's next message waits as long as it takes, since the TCP
// connection would end with the peer. Only what no one tells has a deadline:
// that a probe does not arrive.
namespace gradientflow {
namespace {

constexpr std::chrono::seconds kProbePatience(2);

// The layout of RdmaLink::memory_: first what the peer writes, then what this
// rank's card reads.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kRingBytes = kRingSlots * kRingSlotBytes;
constexpr std::size_t kGrantsBytes = kPage;
constexpr std::size_t kHalfBytes = kRingBytes + kGrantsBytes;
static_assert(kRdmaLanes * kGrantsPerLane * kGrantBytes <= kGrantsBytes);

RemotePlace PlaceOf(const std::byte* data, std::uint32_t key) {
  return {reinterpret_cast<std::uintptr_t>(data), key};
}

}  // namespace

Status RdmaLink::Explain(StatusCode code, const std::string& what) const {
  return Status(code,
                StrCat("rank ", args_.peer, " (", address(), "): ", what));
}

void RdmaLink::Begin() {
  // It may have been told to wait before this link was there.
  for (int lane = 0; lane < args_.control->lanes(); ++lane) {
    args_.control->Resume(lane);
  }
  const Status made = MakePair();
  if (!made.ok()) return Reject(made);
  Offer();
}

Status RdmaLink::MakePair() {
  Rail* const rail = args_.rail.get();
  auto memory = CardMemory::Map(2 * kHalfBytes);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory).value();
  std::byte* const written = memory_.data();
  std::byte* const read = written + kHalfBytes;
  auto by_peer =
      Registration::Make(rail->verbs(), rail->pd(), {written, kHalfBytes, {}},
                         CardRights::kPeersMayWrite, "a ring");
  if (!by_peer.ok()) return by_peer.status();
  written_by_peer_ = std::move(by_peer).value();
  auto by_card =
      Registration::Make(rail->verbs(), rail->pd(), {read, kHalfBytes, {}},
                         CardRights::kRead, "a ring");
  if (!by_card.ok()) return by_card.status();
  read_by_card_ = std::move(by_card).value();
  auto pair = QueuePair::Create(rail, this, rail->args().receives);
  if (!pair.ok()) return pair.status();
  pair_ = std::move(pair).value();
  pair_->SetName(StrCat("RDMA of rank ", args_.rank, " (", rail->name(),
                        ") to rank ", args_.peer, " (", address(), ")"));
  outbox_ = std::make_unique<Outbox>(OutboxArgs{
      rail, pair_.get(), read, read_by_card_.local_key(), written + kRingBytes,
      &owed_credits_, args_.measures ? args_.clock : nullptr});
  inbox_ = std::make_unique<Inbox>(
      InboxArgs{args_.peer, rail, pair_.get(), written, read + kRingBytes,
                read_by_card_.local_key(), &owed_credits_, args_.events,
                StrCat("rank ", args_.peer, " (", address(), "): ")});
  return Status();
}

void RdmaLink::Offer() {
  RailFrame offer;
  offer.text = args_.rail->name();
  offer.address = pair_->address();
  offer.gids = args_.rail->port().gids;
  offer.ethernet = args_.rail->port().ethernet;
  offer.ring = PlaceOf(memory_.data(), written_by_peer_.remote_key());
  offer.grants =
      PlaceOf(memory_.data() + kRingBytes, written_by_peer_.remote_key());
  if (args_.places != nullptr) {
    offer.slots = args_.places->SlotsHere(args_.rail_number);
    offer.slot_bytes = args_.places->slots().bytes;
  }
  Tell(offer);
}

void RdmaLink::Tell(const RailFrame& frame) {
  const std::string& bytes = rail_told_.emplace_back(Encode(frame));
  OutMessage message;
  message.header.kind = MessageKind::kRail;
  message.header.tag = args_.rail_number;
  message.header.payload_bytes = bytes.size();
  message.payload = {
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), {}};
  args_.control->Send(0, message);
}

void RdmaLink::Reject(const Status& why) {
  if (outcome_ != Outcome::kPending) return;
  outcome_ = Outcome::kFails;
  why_ = why;
  Quit();
  RailFrame failed;
  failed.kind = RailFrame::Kind::kFailed;
  failed.text = why.message();
  Tell(failed);
}

bool RdmaLink::settled() const {
  if (outcome_ == Outcome::kPending) return false;
  if (control_down_) return true;
  return (outcome_ == Outcome::kWorks || peer_failed_) &&
         args_.control->queued_messages() == 0;
}

void RdmaLink::OnRailFrame(const RailFrame& frame) {
  if (frame.kind == RailFrame::Kind::kFailed) {
    peer_failed_ = true;
    return Reject(Explain(StatusCode::kUnavailable, frame.text));
  }
  if (outcome_ != Outcome::kPending) return;
  switch (frame.kind) {
    case RailFrame::Kind::kOffer:
      if (const Status status = OnOffer(frame); !status.ok()) Reject(status);
      break;
    case RailFrame::Kind::kReady:
      peer_ready_ = true;
      Probe();
      break;
    case RailFrame::Kind::kPassed:
      peer_passed_ = true;
      PassIfProven();
      break;
    case RailFrame::Kind::kFailed:
      break;
  }
}

Status RdmaLink::OnOffer(const RailFrame& offer) {
  if (connected_) {
    return Explain(StatusCode::kDataLoss, "offers RDMA twice");
  }
  offer_ = offer;
  const RdmaPort& port = args_.rail->port();
  if (offer.ethernet != port.ethernet) {
    return Explain(
        StatusCode::kUnavailable,
        StrCat("has ", offer.text, " on ",
               offer.ethernet ? "Ethernet" : "InfiniBand", ", and ",
               args_.rail->name(), " of rank ", args_.rank, " is on ",
               port.ethernet ? "Ethernet" : "InfiniBand"));
  }
  const std::uint64_t slot_bytes =
      args_.places == nullptr ? 0 : args_.places->slots().bytes;
  if (offer.slot_bytes != slot_bytes) {
    return Explain(
        StatusCode::kInvalidArgument,
        StrCat("has ", offer.slot_bytes,
               " bytes of memory for placed messages, expected ", slot_bytes));
  }
  const bool lower = args_.rank < args_.peer;
  const auto match = lower ? MatchGids(port.gids, offer.gids)
                           : MatchGids(offer.gids, port.gids);
  if (!match) {
    return Explain(StatusCode::kUnavailable,
                   StrCat("no address of its ", offer.text, " fits one of ",
                          args_.rail->name(), " of rank ", args_.rank));
  }
  gid_ = port.gids[lower ? match->first : match->second];
  offer_.address.gid = offer.gids[lower ? match->second : match->first];
  return Connect();
}

Status RdmaLink::Connect() {
  const Status connected = pair_->Connect(gid_, offer_.address);
  if (!connected.ok()) {
    // It is this rank's device that says so.
    return Status(connected.code(),
                  StrCat("RDMA of rank ", args_.rank, " (", args_.rail->name(),
                         ") to rank ", args_.peer, " (", address(),
                         ") cannot begin: ", connected.message(), " (GID ",
                         gid_.index, ", ", gid_.ToString(), ", to ",
                         offer_.address.gid.ToString(), ")"));
  }
  connected_ = true;
  outbox_->SetPeer(offer_.ring);
  inbox_->SetPeer(offer_.grants);
  RailFrame ready;
  ready.kind = RailFrame::Kind::kReady;
  Tell(ready);
  Probe();
  return Status();
}

// Bytes that only the peer with this address can be expected to write. They
// fill a slot, so that packets are as long as the network has to take.
std::vector<std::byte> RdmaLink::ProbeOf(const RdmaAddress& from) const {
  std::vector<std::byte> probe(kRingSlotBytes);
  std::uint64_t x = std::uint64_t{from.number} << 32 | from.psn;
  for (std::byte& byte : probe) {
    x = x * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(x >> 56);
  }
  return probe;
}

void RdmaLink::Probe() {
  if (!connected_ || !peer_ready_ || probe_until_ != Clock::Time{}) return;
  probe_until_ = args_.clock->Now() + kProbePatience;
  const auto probe = ProbeOf(pair_->address());
  std::byte* const from = memory_.data() + kHalfBytes;
  std::copy(probe.begin(), probe.end(), from);
  QueuePair::WriteArgs write;
  write.pieces[0] = {from, probe.size(), read_by_card_.local_key()};
  write.there = offer_.ring;
  write.immediate = 0;
  write.cookie = 1;
  pair_->Write(write);
  pair_->Flush();
}

void RdmaLink::OnProbe(std::uint32_t bytes) {
  const auto expected = ProbeOf(offer_.address);
  if (bytes != expected.size() ||
      !std::equal(expected.begin(), expected.end(), memory_.data())) {
    return Reject(Explain(
        StatusCode::kDataLoss,
        StrCat("sent ", bytes, " bytes by RDMA that are not its probe")));
  }
  probe_seen_ = true;
  PassIfProven();
}

void RdmaLink::PassIfProven() {
  if (probe_seen_ && probe_written_ && !passed_) {
    passed_ = true;
    RailFrame passed;
    passed.kind = RailFrame::Kind::kPassed;
    Tell(passed);
  }
  if (passed_ && peer_passed_) outcome_ = Outcome::kWorks;
}

bool RdmaLink::PollSetup() {
  bool moved = args_.control->Poll();
  if (args_.rail->IsFirst(pair_.get())) moved |= args_.rail->Poll();
  FailIfLate();
  return moved;
}

void RdmaLink::FailIfLate() {
  if (outcome_ != Outcome::kPending || passed_ ||
      probe_until_ == Clock::Time{} || args_.clock->Now() < probe_until_) {
    return;
  }
  Reject(Explain(StatusCode::kDeadlineExceeded,
                 StrCat("nothing got through by RDMA ",
                        probe_written_ ? "from it" : "to it", " within ",
                        Seconds(kProbePatience), " s: ", PathText())));
}

// What to look at if nothing gets through.
std::string RdmaLink::PathText() const {
  return StrCat(args_.rail->name(), " (GID ", gid_.index, ", ", gid_.ToString(),
                ", MTU ", args_.rail->port().mtu, ") of rank ", args_.rank,
                " and ", offer_.text, " (", offer_.address.gid.ToString(),
                ", MTU ", offer_.address.mtu,
                "); check that they are on one network, which lets UDP port "
                "4791 and packets of that size pass, or set "
                "GRADIENTFLOW_RDMA_DEVICES");
}

}  // namespace gradientflow
