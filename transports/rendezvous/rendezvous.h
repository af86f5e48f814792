#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"

// How ranks that know only one common place find each other.
namespace gradientflow {

// What is left of a rendezvous while the ranks connect: by it they learn that
// one of them has ended before any other has reached it. Rank 0 watches over
// all others and tells them what it learns; they watch over rank 0. NOT
// thread-safe.
class RendezvousWatch {
 public:
  virtual ~RendezvousWatch() = default;
  // To be called every now and then. Never waits for another rank. Returns OK,
  // or, from then on, an error that names a rank that has ended, or what a rank
  // has said as it left.
  virtual Status Look() = 0;
  // Whether all that this rank watches over have left, as the last Look() saw.
  virtual bool Over() const = 0;
  // Says that this rank is linked to all that it needs, or why it is not, which
  // every rank that still looks then learns. To be called once, as the last.
  virtual void Leave(const Status& how) = 0;
};

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
  Clock::Time deadline{};  // By the clock given to Meet().
  // Over TCP, rank 0 calls this. It returns OK if a rank with this card may
  // take part; otherwise the rank is left out, with that error.
  // kInvalidArgument says that the rank has other settings: if all others have
  // come and no right one does within 3 s, Meet() ends with the error
  // everywhere. If it is null, any rank may take part.
  std::function<Status(int rank, const std::string& card)> check_card;
  // Over TCP, rank 0 calls this when it has left out a rank of this job, for
  // this reason, and awaits the right one. If it is null, the reason is
  // reported only if the right one does not come.
  std::function<void(const Status&)> on_left_out;
  // Gets the watch if Meet() succeeds and there is more than one rank. All
  // ranks want it, or none does. Over TCP it keeps a connection on each rank
  // and size - 1 on rank 0. In files it sees the end of a process on another
  // host if the file system has locks between hosts, and else not.
  std::unique_ptr<RendezvousWatch>* watch = nullptr;
};

// Computes from the cards of all ranks, by rank, what each of `ranks` is told,
// in their order. It runs where all cards are: on rank 0 for all ranks, and in
// a directory on each rank for itself. So it depends on the cards and on what
// all ranks have in common, and an error of it is the same everywhere.
using Introduce = std::function<Result<std::vector<std::string>>(
    const std::vector<std::string>& cards, const std::vector<int>& ranks)>;

// Shows `my_card` (opaque, at most kMaxCardBytes) and returns what `introduce`
// makes of all cards for this rank. Over TCP rank 0 sends only that, so what
// opening a large job costs depends on how much its ranks are told. Blocks
// until every rank is known to have it. Uses no thread of its own.
//
// A failure that concerns the job (a rank that is missing at rank 0's deadline,
// or that dies after it has joined) ends the call with the same error on every
// rank that had joined. A process that does not fit is turned away with an
// error, while the others go on, and is named if they wait in vain: another
// secret, another size, a card that does not fit, frames that make no sense,
// the earlier of two processes that claim one rank, one that falls silent. A
// rank with another size or other settings ends the job after all, if the right
// one does not come soon.
//
// Errors: kDeadlineExceeded names the missing ranks, kInvalidArgument what
// disagrees; kFailedPrecondition means that the port is taken or not on rank
// 0's host, or that the secret differs, kUnavailable that a rank died. What
// `introduce` returns ends the call on all ranks.
Result<std::string> Meet(const RendezvousOptions& options,
                         const std::string& my_card, const Introduce& introduce,
                         const Clock& clock);

}  // namespace gradientflow
