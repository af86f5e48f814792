#pragma once

#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "transports/fabric.h"

namespace gradientflow {

// Which ranks have closed a session that others still step in. A rank that
// closes its session may stay in the job, so ranks that wait for it in a step
// would not find out that it no longer takes part. Therefore each rank that
// closes tells the others how many steps it has finished.
// NOT thread-safe: called by the holder of the baton.
class ClosingNotes {
 public:
  // Notes go between the ranks of `group`, as messages of group `id`, which is
  // the same on all ranks and has no other messages of tag 0. `fabric` is
  // borrowed.
  ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id);

  // Returns OK, or kUnavailable with the name of a rank that takes no part in
  // the step after the first `steps` steps. To be asked now and then.
  Status Check(std::uint64_t steps) const;
  // Tells the others that this rank closes after `steps` steps. The last call.
  void Close(std::uint64_t steps);

 private:
  Fabric& fabric_;
  const MessageId id_;
  std::vector<int> peers_;  // As ranks of the fabric.
};

}  // namespace gradientflow
