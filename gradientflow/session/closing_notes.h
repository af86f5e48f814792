#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Which ranks have closed a session that others still step in. A rank that
// closes its session may stay in the job, so ranks that wait for it in a step
// would not find out that it no longer takes part. Therefore each rank that
// closes tells those that it is linked to, or will be, how many steps it has
// finished, and whether it closes in the middle of the next one. In that case
// all ranks may do so, and then they end that step together (Steps::~Steps()).
//
// Whether all of p ranks do, each finds out in ceil(log2 p) rounds: in round k,
// from 0, it tells the rank 2^k places further on that it and the 2^k - 1 ranks
// before it are inside, which it knows from the rounds before. So that takes
// 2 ceil(log2 p) links of a rank, to its neighbours (communicator/neighbours.h)
// if the session is of all ranks. NOT thread-safe: called by the holder of the
// baton.
class ClosingNotes {
 public:
  // Notes go between the ranks of `group`, as messages of group `id`, which is
  // the same on all ranks and has no other messages. `fabric` is borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);

  // Returns OK, or kUnavailable with the name of a rank that takes no part in
  // the step after the first `steps` steps. To be asked now and then; with
  // `waits`, if this rank cannot go on without the others, and otherwise ranks
  // that have closed in this very step are let pass, for this one may be about
  // to do the same.
  Status Check(std::uint64_t steps, bool waits) const;
  // Tells the others that this rank closes after `steps` steps, `inside` the
  // next one or not. Inside, it asks for the links of the rounds, and begins
  // them. To be called once.
  void Tell(std::uint64_t steps, bool inside);
  // Whether all others have told the same, inside the step, or have come past
  // it with what this rank has sent; or one has gone without it, which this
  // rank passes on. To be called after Tell(), with the same `steps`, again and
  // again while the answer is kAwaited.
  enum class Others : std::uint8_t { kAwaited, kInside, kGone };
  Others Ask(std::uint64_t steps);
  // The last call.
  void Close();

 private:
  // By whom this rank is told in a round, and whom it tells; as ranks of the
  // fabric.
  struct Round {
    int from = 0;
    int to = 0;
  };

  void TellRound(std::uint64_t note);
  std::optional<std::uint64_t> Past(int peer, std::uint64_t steps) const;

  Fabric& fabric_;
  const MessageId note_id_;
  const MessageId round_id_;
  std::vector<int> peers_;  // As ranks of the fabric.
  std::vector<Round> rounds_;
  std::size_t told_ = 0;   // Rounds in which this rank has told.
  std::size_t heard_ = 0;  // Rounds in which it has heard that all are inside.
};

}  // namespace gradientflow
