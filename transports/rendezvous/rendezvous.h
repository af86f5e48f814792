#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"

// How ranks that know only one common place find each other.
namespace gradientflow {

inline constexpr std::size_t kMaxCardBytes = std::size_t{64} << 10;

// Returns the secret of a job: all its ranks know it, and only they do if the
// token is one. `run` tells apart jobs and restarts that have the same token.
Bits256 JobSecret(std::string_view token, std::string_view run);

struct RendezvousOptions {
  // "host:port" or "[ipv6]:port", where rank 0 listens, or "file:///directory",
  // which all ranks share. The directory is created if only its last part is
  // missing.
  std::string address;
  // Ranks with another secret are refused. It is never sent.
  Bits256 secret = {};
  int rank = 0;
  int size = 1;
  Clock::Time deadline{};  // By the clock given to ExchangeCards().
};

// Gives `my_card` (opaque, at most kMaxCardBytes) to all ranks and returns the
// cards of all ranks, by rank. Blocks until every rank is known to have all
// cards. Uses no thread of its own.
//
// A failure that concerns the job (a rank that is missing at rank 0's deadline,
// or that dies after it has joined) ends the call with the same error on every
// rank that had joined. Who does not fit is turned away with an error, while
// the others go on, and is named if they wait in vain: another secret, another
// size, the earlier of two processes that claim one rank, one that falls
// silent.
//
// Errors: kDeadlineExceeded names the missing ranks, kInvalidArgument what
// disagrees; kFailedPrecondition means that the port is taken or not on rank
// 0's host, or that the secret differs, kUnavailable that a rank died.
Result<std::vector<std::string>> ExchangeCards(const RendezvousOptions& options,
                                               const std::string& my_card,
                                               const Clock& clock);

}  // namespace gradientflow
