#include <algorithm>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/executor.h"

// Whom the calls of an executor wait for, since when, and how they fail.
namespace gradientflow {

// The fabric finds the calls that wait for a message of a departed rank. Calls
// that wait for such a rank at a kSync, or for what it is to place, are found
// here.
void Executor::FailIfDeparted() {
  std::vector<int> ranks;
  for (const Queue* queue : busy_) {
    for (const Segment* segment : queue->segments) {
      if (!segment->idle()) segment->AddAwaited(&ranks);
    }
  }
  for (int rank : ranks) args_.fabric->FailIfDeparted(rank);
}

// The fabric has given back every buffer, and nobody writes to this rank's
// memory.
void Executor::FailAll(const Status& why) {
  for (auto& segment : segments_) segment->PutsAreOver();
  // A peer may have failed in a later call, and may have done its share of this
  // one before.
  AdvanceLocal();
  Retire();
  for (auto& segment : segments_) {
    if (segment->idle()) continue;
    segment->Retract();
    segment->Reset();
  }
  if (placed_ != nullptr) placed_->Abandon();
  running_ = 0;
  for (Queue* queue : busy_) {
    for (auto& operation : queue->operations) {
      ended_.Add(operation->done, 0, why);
    }
    queue->operations.clear();
  }
  busy_.clear();
  operations_ = 0;
}

Clock::Time Executor::StandsSince(Clock::Time now) {
  Clock::Time since = now;
  for (Queue* queue : busy_) {
    const Operation& front = *queue->operations.front();
    if (front.sequence != queue->front ||
        front.advances() != queue->front_advances) {
      queue->front = front.sequence;
      queue->front_advances = front.advances();
      queue->moved_at = now;
    }
    since = std::min(since, queue->moved_at);
  }
  return since;
}

std::vector<int> Executor::AwaitedRanks() const {
  std::vector<int> ranks = args_.fabric->AwaitedPeers();
  for (const Queue* queue : busy_) {
    for (const Segment* segment : queue->segments) {
      if (!segment->idle()) segment->AddAwaited(&ranks);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string Executor::OldestCall() const {
  std::string text;
  for (const Queue* queue : busy_) {
    const Operation& operation = *queue->operations.front();
    text += StrCat(text.empty() ? "" : " and in ",
                   Describe(operation.call, operation.sequence));
  }
  return text;
}

}  // namespace gradientflow
