#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Which ranks have closed a session in which others still make steps. A rank
// that closes its session may stay in the job, so ranks that wait for it in a
// step would not find out that it no longer takes part. Therefore each rank
// that closes tells the ranks that it has links to how many steps it has
// finished, and whether it closes in the middle of the next one. If all ranks
// close in the middle of the same step, they end that step together
// (Steps::~Steps()).
//
// Each of p ranks finds out in ceil(log2 p) rounds whether all do. In round k,
// from 0, it tells the rank 2^k places further on that it and the 2^k - 1 ranks
// before it are inside, which it knows from the rounds before. That takes
// 2 ceil(log2 p) links of a rank, which lead to its neighbours
// (communicator/neighbours.h) if the session is of all ranks. NOT thread-safe:
// called by the holder of the baton.
class ClosingNotes {
 public:
  // Notes go between the ranks of `group`, as messages of group `id`, which is
  // the same on all ranks and has no other messages. `fabric` is borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);

  // Returns OK, or kUnavailable with the name of a rank that takes no part in
  // the step after the first `steps` steps. To be called now and then. `waits`
  // says that this rank cannot go on without the others. If it is false, ranks
  // that have closed in the middle of this very step are no error, since this
  // rank may be about to do the same.
  Status Check(std::uint64_t steps, bool waits) const;
  // Tells the others that this rank closes after `steps` steps and, if
  // `inside`, in the middle of the next one. In that case asks for the links of
  // the rounds, and begins them. To be called once.
  void Tell(std::uint64_t steps, bool inside);
  // kInside: all others close in the middle of that step, too, or have finished
  // it with what this rank has sent. kGone: one has left without it, which this
  // rank passes on. REQUIRES Tell() with the same `steps`; to be called again
  // while the answer is kAwaited.
  enum class Others : std::uint8_t { kAwaited, kInside, kGone };
  Others Ask(std::uint64_t steps);
  // To be called last.
  void Close();

 private:
  // The rank from which this one gets a note in a round, and the rank to which
  // it sends one; both as ranks of the fabric.
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
