#pragma once

#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/core.h"
#include "transports/wire.h"

namespace gradientflow {

// The slots that this rank lends to the ranks of a session that is on a group,
// so that they may place its gradients; see Executor::LendPlaces(). They do if
// all of them have lent theirs. Thread-safe, but for its own calls.
class LentPlaces {
 public:
  // `core` outlives it.
  explicit LentPlaces(CommunicatorCore& core) : core_(core) {}
  ~LentPlaces() { TakeBack(); }
  LentPlaces(const LentPlaces&) = delete;
  LentPlaces& operator=(const LentPlaces&) = delete;

  // Returns whether there was something to lend.
  bool Lend(const CallGroup& ranks);
  // All ranks have lent theirs, or not all. `group` is the one whose gradient
  // channel the session has.
  void Settle(GroupId group, bool all_lend);
  void TakeBack();

 private:
  CommunicatorCore& core_;
  GroupId group_ = 0;
  bool lent_ = false;
};

}  // namespace gradientflow
