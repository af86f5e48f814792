#pragma once

#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "transports/rendezvous/rendezvous.h"

// The ways to meet that ExchangeCards() chooses from; its contract is theirs.
// REQUIRES options that ExchangeCards() has checked, and size > 1.
namespace gradientflow::rendezvous {

// A client that had joined waits this much longer for rank 0's verdict, which
// knows more than its own clock.
inline constexpr std::chrono::seconds kGrace(5);

struct Call {
  const RendezvousOptions& options;
  const std::string& my_card;
  const Clock& clock;
};

// Rank 0 listens and serves.
Result<std::vector<std::string>> ServeTcp(const Call& call);
// The others.
Result<std::vector<std::string>> JoinTcp(const Call& call);

// In `directory`.
Result<std::vector<std::string>> MeetInFiles(const Call& call,
                                             const std::string& directory);

}  // namespace gradientflow::rendezvous
