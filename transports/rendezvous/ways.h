#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/rendezvous/rendezvous.h"

// The ways to meet that Meet() chooses from. They have its contract. REQUIRES
// options that Meet() has checked, and size > 1.
namespace gradientflow::rendezvous {

// A client that had joined waits this much longer for the verdict of rank 0,
// which knows more than the client's own clock.
inline constexpr std::chrono::seconds kGrace(5);

// How long a connection may take to prove that it belongs to the job, and a
// rank to send its card or to acknowledge its introduction. A library that runs
// does so within a round trip.
inline constexpr std::chrono::seconds kAnswerPatience(10);

struct Call {
  const RendezvousOptions& options;
  const std::string& my_card;
  const Introduce& introduce;
  const Clock& clock;
};

// Rank 0 listens and serves.
Result<std::string> ServeTcp(const Call& call);
// The other ranks connect.
Result<std::string> JoinTcp(const Call& call);

// All ranks meet in files in `directory`. Returns the cards of all, by rank.
Result<std::vector<std::string>> MeetInFiles(const Call& call,
                                             const std::string& directory);

}  // namespace gradientflow::rendezvous
