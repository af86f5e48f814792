#include "gradientflow/collectives/call_queue.h"

#include <algorithm>

#include "gradientflow/collectives/mailboxes.h"

namespace gradientflow {

void CallQueue::FailAll(const Status& why, DoneQueue* due) {
  while (!operations_.empty()) {
    due->Add(operations_.pop_front()->done, 0, why);
  }
}

// A peer begins no sync more than a window past its own oldest sync, so this
// rank's oldest is at most a window past that of the peer. This rank goes at
// most one more window further, and two windows are all the slots of a channel.
// There are fewer mailboxes than slots, so the window is smaller while it
// includes a sync with mail.
bool CallQueue::HasSlotsFor(const Schedule& schedule,
                            std::uint64_t syncs) const {
  constexpr std::uint64_t kWindow = kSyncSlots / kChannels / 2;
  bool mailed = schedule.mailed;
  std::uint64_t oldest = next_sync_;
  for (const Segment* segment : segments_) {
    if (segment->idle()) continue;
    mailed |= segment->mailed();
    oldest = std::min(oldest, segment->next_sync());
  }
  return next_sync_ + syncs - oldest <=
         (mailed ? Mailboxes::kBoxes / 2 : kWindow);
}

void CallQueue::AddAwaited(std::vector<int>* ranks) const {
  for (const Segment* segment : segments_) {
    if (!segment->idle()) segment->AddAwaited(ranks);
  }
}

Clock::Time CallQueue::StandsSince(Clock::Time now) {
  if (front().sequence != seen_ || front().advances() != seen_advances_) {
    seen_ = front().sequence;
    seen_advances_ = front().advances();
    moved_at_ = now;
  }
  return moved_at_;
}

}  // namespace gradientflow
