#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"

// How ranks that know only one common place find each other.
namespace gradientflow {

inline constexpr std::size_t kMaxCardBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxTokenBytes = 4096;

struct RendezvousOptions {
  // "host:port" or "[ipv6]:port", where rank 0 listens, or "file:///directory",
  // which all ranks share. The directory is created if only its last part is
  // missing.
  std::string address;
  // Ranks with another token are refused. It is not encrypted on the network.
  std::string job_token;
  int rank = 0;
  int size = 1;
  Clock::Time deadline{};  // By the clock given to ExchangeCards().
};

// Gives `my_card` (opaque, at most kMaxCardBytes) to all ranks and returns the
// cards of all ranks, by rank. Blocks until every rank is known to have all
// cards. Uses no thread of its own.
//
// A failure that concerns the job (a rank that is missing at rank 0's deadline,
// a rank claimed twice, a different size) ends the call with the same error on
// every rank that had joined. A client with another token is turned away, and
// the others go on.
//
// Errors: kDeadlineExceeded names the missing ranks, kInvalidArgument what
// disagrees; kFailedPrecondition means that the port is taken or not on rank
// 0's host, kUnavailable that a rank left in between.
Result<std::vector<std::string>> ExchangeCards(const RendezvousOptions& options,
                                               const std::string& my_card,
                                               const Clock& clock);

}  // namespace gradientflow
