#pragma once

#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Which ranks have closed a session in which others still make steps. A rank
// that closes its session may stay in the job, so ranks that wait for it in a
// step would not find out that it no longer takes part. Therefore each rank
// that closes tells the others how many steps it has finished, and whether it
// closes in the middle of the next one. If all ranks close in the middle of the
// same step, they end that step together (Steps::~Steps()). NOT thread-safe:
// called by the holder of the baton.
class ClosingNotes {
 public:
  // Notes go between the ranks of `group`, as messages of group `id`, which is
  // the same on all ranks and has no other messages of tag 0. `fabric` is
  // borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);

  // Returns OK, or kUnavailable with the name of a rank that takes no part in
  // the step after the first `steps` steps. To be called now and then. `waits`
  // says that this rank cannot go on without the others. If it is false, ranks
  // that have closed in the middle of this very step are no error, since this
  // rank may be about to do the same.
  Status Check(std::uint64_t steps, bool waits) const;
  // Tells the others that this rank closes after `steps` steps and, if
  // `inside`, in the middle of the next one. In that case asks for the links to
  // all of them.
  void Tell(std::uint64_t steps, bool inside);
  // kInside: all others close in the middle of that step, too, or have finished
  // it with what this rank has sent. kGone: one has left without it.
  enum class Others : std::uint8_t { kAwaited, kInside, kGone };
  Others Ask(std::uint64_t steps) const;
  // To be called last.
  void Close();

 private:
  Fabric& fabric_;
  const MessageId id_;
  std::vector<int> peers_;  // As ranks of the fabric.
};

}  // namespace gradientflow
