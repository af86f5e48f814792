#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// What a rank knows of whether its peers are alive. A peer whose process runs
// gives a sign of life now and then; one that is silent for too long counts as
// stopped. A peer whose link breaks is under suspicion for a moment, until
// other ranks have had time to say what they know: it may be the victim of
// another failure. NOT thread-safe.
class Liveness {
 public:
  Liveness(const Clock& clock, int peers, std::chrono::nanoseconds timeout);

  // A sign of life from the peer, or the beginning of the wait for one.
  void Heard(int peer) { peers_[peer].heard = clock_.Now(); }
  // The number of beats that have come from the peer; a new one is a sign.
  void CountBeats(int peer, std::uint64_t beats);

  // To be called every 100 ms or so. Returns whether peers should get a sign of
  // life from this rank.
  bool Tick();
  // How long the peer had been silent at the last Tick().
  std::chrono::nanoseconds SilenceOf(int peer) const {
    return ticked_ - peers_[peer].heard;
  }
  bool IsSilent(int peer) const { return SilenceOf(peer) > timeout_; }

  // Makes the job fail with `why` unless there is other news of the peer within
  // `patience`. The first suspicion counts, unless a later one is due earlier.
  void Suspect(int peer, const Status& why, std::chrono::nanoseconds patience);
  bool suspects() const { return !suspicion_.ok(); }
  // Returns whether the time for news is over, so that the suspect is to blame.
  bool IsConvinced() const { return clock_.Now() >= suspect_until_; }
  const Status& suspicion() const { return suspicion_; }
  // The peer has turned up. Returns whether it was the suspect. Others may have
  // gone meanwhile, since there is room for one suspicion only.
  bool Acquit(int peer);

 private:
  struct Peer {
    Clock::Time heard{};      // Last sign that the process runs.
    std::uint64_t beats = 0;  // As last counted.
  };

  const Clock& clock_;
  const std::chrono::nanoseconds timeout_;
  std::vector<Peer> peers_;
  Clock::Time ticked_;
  Clock::Time beaten_;
  Status suspicion_;
  int suspect_ = 0;
  Clock::Time suspect_until_{};
};

}  // namespace gradientflow
