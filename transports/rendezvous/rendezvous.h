#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"

// How ranks that know no more than one common place find each other.
namespace gradientflow {

inline constexpr std::size_t kMaxCardBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxTokenBytes = 4096;

struct RendezvousOptions {
  // "host:port" or "[ipv6]:port": rank 0 listens there. "file:///directory":
  // one that all ranks share; made if only its last part is missing.
  std::string address;
  // Ranks with another token stay out. Not encrypted on the way.
  std::string job_token;
  int rank = 0;
  int size = 1;
  Clock::Time deadline{};  // By the clock of ExchangeCards().
};

// Gives `my_card` (opaque, kMaxCardBytes at most) to all ranks and returns all
// ranks' cards, by rank; with them every rank knows that all others have them
// too. Blocks until then; uses no thread.
//
// A failure that concerns the job (a rank that is missing at rank 0's deadline,
// one claimed twice, another size) ends the call with the same error on every
// rank that had joined; a client with another token is turned away, and the
// others go on. kDeadlineExceeded names the missing ranks, kInvalidArgument
// what disagrees, kFailedPrecondition a port that is taken or not rank 0's,
// kUnavailable a rank that left in between.
Result<std::vector<std::string>> ExchangeCards(const RendezvousOptions& options,
                                               const std::string& my_card,
                                               const Clock& clock);

}  // namespace gradientflow
