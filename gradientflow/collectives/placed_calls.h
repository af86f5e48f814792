#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/placed_layout.h"
#include "gradientflow/collectives/placed_slots.h"
#include "transports/fabric.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Returns how much of a call of `group` fits into one segment if its ranks
// place messages on those of other hosts; 0 if they do not.
std::size_t PlacedBytes(const CallGroup& group, const Cutting& cutting);

// Tells which calls place messages in the slots of their peers, and in which
// window: calls of all ranks, and calls on Channel::kGradients of one group at
// a time, to which this rank lends a window of its own. A rank without slots
// places nothing.
// NOT thread-safe.
class PlacedCalls {
 public:
  // `places` may be null. All arguments are borrowed; `all` is the group of all
  // ranks, and may change.
  PlacedCalls(RemotePlaces* places, Fabric& fabric, const CallGroup& all,
              const Cutting& cutting);

  // A call begins, which CallDone() or Abandon() ends. Returns the window whose
  // slots its segments use if they are placed; kNoWindow if they cannot be.
  int CallBegins(const CallGroup& group, Channel channel);
  // See PlacedSlots::Take().
  PlacedSlot* Take(int window) { return slots_->Take(window); }
  // Call `call` of the window, which may be kNoWindow, is done on this rank.
  void CallDone(int window, std::uint64_t call) {
    if (window != kNoWindow) slots_->CallDone(window, call);
  }
  // The fabric has failed: nothing touches lent memory any more.
  void Abandon() {
    if (slots_ != nullptr) slots_->Abandon();
  }

  // Lends the group's window to `ranks`; see Executor::LendPlaces().
  bool Lend(const std::vector<int>& ranks);
  // See PlacedSlots::GroupIsQuiet().
  bool IsQuiet() const { return slots_ == nullptr || slots_->GroupIsQuiet(); }
  // Ends what Lend() has begun.
  void TakeBack() { slots_->EndGroup(); }

 private:
  bool HavePlaces(const std::vector<int>& ranks) const;

  const CallGroup& all_;
  const Cutting cutting_;
  std::unique_ptr<PlacedSlots> slots_;  // May be null.
};

}  // namespace gradientflow
