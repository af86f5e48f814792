#include "transports/rdma/rdma_handshake.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

// The steps that rdma_handshake.h shows, from one end:
//
//   Begin()          tells the peer where this end is
//   OnOffer()        compares networks and sizes, chooses a pair of GIDs, and
//                    connects the queue pair; tells that it is ready
//   Probe()          once both are ready, writes a slot of the peer's ring
//   OnProbe()        the peer's probe has come, with the right bytes
//   OnWritten()      the peer's card has acknowledged this end's
//   PassIfProven()   after both: tells the peer; it works if the peer says so
namespace gradientflow {
namespace {

// A probe takes less than a millisecond on any network that works.
constexpr std::chrono::seconds kProbePatience(2);

}  // namespace

Status RdmaHandshake::Explain(StatusCode code, const std::string& what) const {
  return Status(code, StrCat("rank ", args_.peer, " (",
                             args_.control->address(), "): ", what));
}

void RdmaHandshake::Begin(RdmaEnd* end) {
  end_ = end;
  RailFrame offer;
  offer.text = args_.rail->name();
  offer.address = end_->pair()->address();
  offer.gids = args_.rail->port().gids;
  offer.ethernet = args_.rail->port().ethernet;
  offer.ring = end_->ring();
  offer.grants = end_->grants();
  if (args_.places != nullptr) {
    offer.slots = args_.places->SlotsHere(args_.rail_number);
    offer.slot_bytes = args_.places->slots().bytes;
  }
  Tell(offer);
}

void RdmaHandshake::Tell(const RailFrame& frame) {
  const std::string& bytes = told_.emplace_back(Encode(frame));
  OutMessage message;
  message.header.kind = MessageKind::kRail;
  message.header.tag = args_.rail_number;
  message.header.payload_bytes = bytes.size();
  message.payload = {
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), {}};
  args_.control->Send(0, message);
}

void RdmaHandshake::Fail(const Status& why) {
  outcome_ = Outcome::kFails;
  RailFrame failed;
  failed.kind = RailFrame::Kind::kFailed;
  failed.text = why.message();
  Tell(failed);
}

Status RdmaHandshake::OnFrame(const RailFrame& frame) {
  if (frame.kind == RailFrame::Kind::kFailed) {
    peer_failed_ = true;
    return Explain(StatusCode::kUnavailable, frame.text);
  }
  if (outcome_ != Outcome::kPending) return Status();
  switch (frame.kind) {
    case RailFrame::Kind::kOffer:
      return OnOffer(frame);
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
  return Status();
}

Status RdmaHandshake::OnOffer(const RailFrame& offer) {
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

Status RdmaHandshake::Connect() {
  const Status connected = end_->pair()->Connect(gid_, offer_.address);
  if (!connected.ok()) {
    // It is this rank's device that says so.
    return Status(
        connected.code(),
        StrCat("RDMA of rank ", args_.rank, " (", args_.rail->name(),
               ") to rank ", args_.peer, " (", args_.control->address(),
               ") cannot begin: ", connected.message(), " (GID ", gid_.index,
               ", ", gid_.ToString(), ", to ", offer_.address.gid.ToString(),
               ")"));
  }
  connected_ = true;
  end_->SetPeer(offer_.ring, offer_.grants);
  RailFrame ready;
  ready.kind = RailFrame::Kind::kReady;
  Tell(ready);
  Probe();
  return Status();
}

// Bytes that only the peer with this address can be expected to write. They
// fill a slot, so that packets are as long as the network has to take.
std::vector<std::byte> RdmaHandshake::ProbeOf(const RdmaAddress& from) {
  std::vector<std::byte> probe(kRingSlotBytes);
  std::uint64_t x = std::uint64_t{from.number} << 32 | from.psn;
  for (std::byte& byte : probe) {
    x = x * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(x >> 56);
  }
  return probe;
}

void RdmaHandshake::Probe() {
  if (!connected_ || !peer_ready_ || probe_until_ != Clock::Time{}) return;
  probe_until_ = args_.clock->Now() + kProbePatience;
  end_->WriteFirstSlot(ProbeOf(end_->pair()->address()), offer_.ring);
}

Status RdmaHandshake::OnProbe(std::uint32_t bytes) {
  const auto expected = ProbeOf(offer_.address);
  const auto seen = end_->first_slot();
  if (bytes != expected.size() ||
      !std::equal(expected.begin(), expected.end(), seen.begin())) {
    return Explain(
        StatusCode::kDataLoss,
        StrCat("sent ", bytes, " bytes by RDMA that are not its probe"));
  }
  probe_seen_ = true;
  PassIfProven();
  return Status();
}

void RdmaHandshake::PassIfProven() {
  if (probe_seen_ && probe_written_ && !passed_) {
    passed_ = true;
    RailFrame passed;
    passed.kind = RailFrame::Kind::kPassed;
    Tell(passed);
  }
  if (passed_ && peer_passed_) outcome_ = Outcome::kWorks;
}

Status RdmaHandshake::CheckTime() const {
  if (outcome_ != Outcome::kPending || passed_ ||
      probe_until_ == Clock::Time{} || args_.clock->Now() < probe_until_) {
    return Status();
  }
  return Explain(StatusCode::kDeadlineExceeded,
                 StrCat("nothing got through by RDMA ",
                        probe_written_ ? "from it" : "to it", " within ",
                        Seconds(kProbePatience), " s: ", PathText()));
}

std::string RdmaHandshake::PathText() const {
  return StrCat(args_.rail->name(), " (GID ", gid_.index, ", ", gid_.ToString(),
                ", MTU ", args_.rail->port().mtu, ") of rank ", args_.rank,
                " and ", offer_.text, " (", offer_.address.gid.ToString(),
                ", MTU ", offer_.address.mtu,
                "); check that they are on one network, which lets UDP port "
                "4791 and packets of that size pass, or set "
                "GRADIENTFLOW_RDMA_DEVICES");
}

}  // namespace gradientflow
