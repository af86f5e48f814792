#include "transports/liveness.h"

#include <utility>

namespace gradientflow {

Liveness::Liveness(const Clock& clock, int peers,
                   std::chrono::nanoseconds timeout)
    : clock_(clock),
      timeout_(timeout),
      peers_(static_cast<std::size_t>(peers)),
      ticked_(clock.Now()),
      beaten_(ticked_) {}

void Liveness::CountBeats(int peer, std::uint64_t beats) {
  if (std::exchange(peers_[peer].beats, beats) != beats) {
    peers_[peer].heard = ticked_;
  }
}

// If the last tick is long ago, this process itself may have been stopped, and
// the silence of its peers since then means nothing.
bool Liveness::Tick() {
  const Clock::Time now = clock_.Now();
  if (now - std::exchange(ticked_, now) > timeout_ / 2) {
    for (Peer& peer : peers_) peer.heard = now;
  }
  if (now - beaten_ <= timeout_ / 5) return false;
  beaten_ = now;
  return true;
}

void Liveness::Suspect(int peer, const Status& why,
                       std::chrono::nanoseconds patience) {
  const Clock::Time until = clock_.Now() + patience;
  if (suspects() && suspect_until_ <= until) return;
  suspicion_ = why;
  suspect_ = peer;
  suspect_until_ = until;
}

bool Liveness::Acquit(int peer) {
  if (!suspects() || suspect_ != peer) return false;
  suspicion_ = Status();
  return true;
}

}  // namespace gradientflow
