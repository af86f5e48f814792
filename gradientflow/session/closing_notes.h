#pragma once

#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Who has closed a session that others still step in. A rank that closes its
// session may stay in the job, so nothing else would tell those who wait for it
// in a step that it does not take part in any more: each rank that closes tells
// the others how many steps it has finished.
// NOT thread-safe: the baton's holder calls.
class ClosingNotes {
 public:
  // Between the ranks of `group`, by messages of group `id`, which has no other
  // messages of tag 0 and is alike on all ranks. `fabric` is borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);

  // OK, or kUnavailable names a rank that takes no part in the step which comes
  // after so many. To be asked now and then.
  Status Check(std::uint64_t steps) const;
  // This rank closes, after so many steps. The last call.
  void Close(std::uint64_t steps);

 private:
  Fabric& fabric_;
  const MessageId id_;
  std::vector<int> peers_;  // Ranks of the fabric.
};

}  // namespace gradientflow
