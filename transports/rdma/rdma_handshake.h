#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/link.h"
#include "transports/rdma/frames.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rdma_end.h"
#include "transports/rdma/rdma_places.h"

namespace gradientflow {

// All are borrowed, and outlive the handshake.
struct RdmaHandshakeArgs {
  int rank = 0;
  int peer = 0;
  Rail* rail = nullptr;
  std::size_t rail_number = 0;
  Link* control = nullptr;             // By which the two ranks talk.
  const RdmaPlaces* places = nullptr;  // Null if no messages are placed.
  const Clock* clock = nullptr;
};

// How two ranks find out whether RDMA works between them, by messages on their
// TCP connection:
//
//   kOffer ──> <── kOffer     queue pairs, addresses, memory
//   kReady ──> <── kReady     the queue pairs are connected
//   probe  ══> <══ probe      a whole slot of the ring, by RDMA
//   kPassed ─> <── kPassed    mine has arrived and yours has come: it works
//
// Either may say kFailed instead, until it has said kPassed. There is a link
// only if both have said kPassed, so the two ranks agree in any case. A rank
// waits without limit for its peer's next message, since the TCP connection
// would end with the peer. Only the probe has a deadline, since nothing reports
// that it does not arrive. A caller whose own time is over may Fail() what has
// not passed. It waits for the peer's word in any case: without that, the two
// ranks would not know that they agree.
//
// If a method returns an error, that is why there is no link; its caller then
// calls Fail().
class RdmaHandshake {
 public:
  enum class Outcome : std::uint8_t { kPending, kWorks, kFails };

  explicit RdmaHandshake(const RdmaHandshakeArgs& args) : args_(args) {}

  // Offers `end`, which outlives the handshake or is not used after Fail().
  void Begin(RdmaEnd* end);
  // A frame of the peer has come.
  Status OnFrame(const RailFrame& frame);
  bool AwaitsProbe() const {
    return outcome_ == Outcome::kPending && !probe_seen_;
  }
  // The peer has written something.
  Status OnProbe(std::uint32_t bytes);
  // A write of this rank has arrived. Returns whether it was the probe.
  bool OnWritten() {
    if (outcome_ != Outcome::kPending || probe_written_) return false;
    probe_written_ = true;
    PassIfProven();
    return true;
  }
  // Returns whether a probe is on its way, so that a broken queue pair means
  // that the probe failed.
  bool probing() const {
    return probe_until_ != Clock::Time{} && !probe_written_;
  }
  // Returns kDeadlineExceeded if nothing gets through.
  Status CheckTime() const;
  // There is no link, for this reason: tells the peer. REQUIRES kPending.
  void Fail(const Status& why);

  Outcome outcome() const { return outcome_; }
  // Returns whether this end has said kPassed: from then on only the peer may
  // fail the handshake.
  bool passed() const { return passed_; }
  // Whether the peer has said kFailed.
  bool peer_failed() const { return peer_failed_; }
  const RailFrame& offer() const { return offer_; }  // The peer's.
  // What to look at if nothing gets through.
  std::string PathText() const;
  // Names the peer.
  Status Explain(StatusCode code, const std::string& what) const;

 private:
  Status OnOffer(const RailFrame& offer);
  Status Connect();
  void Probe();
  void PassIfProven();
  void Tell(const RailFrame& frame);
  static std::vector<std::byte> ProbeOf(const RdmaAddress& from);

  const RdmaHandshakeArgs args_;
  RdmaEnd* end_ = nullptr;
  RailFrame offer_;
  RdmaGid gid_;  // This rank's, for this peer.
  bool connected_ = false;
  bool peer_ready_ = false;
  bool probe_written_ = false;
  bool probe_seen_ = false;
  bool passed_ = false;
  bool peer_passed_ = false;
  bool peer_failed_ = false;
  Clock::Time probe_until_{};
  Outcome outcome_ = Outcome::kPending;
  std::deque<std::string> told_;  // The frames that leave.
};

}  // namespace gradientflow
