#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/growing_queue.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/operation.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment.h"

namespace gradientflow {

// The calls of one channel of one group, in order, and the segments that run
// them: the window. Calls begin and end in their order, and no queue waits for
// another. NOT thread-safe.
class CallQueue {
 public:
  // Empty until the first call. Borrowed.
  std::vector<Segment*>& segments() { return segments_; }
  const std::vector<Segment*>& segments() const { return segments_; }

  bool empty() const { return operations_.empty(); }
  std::size_t calls() const { return operations_.size(); }
  // REQUIRES that it is not empty.
  const Operation& front() const { return *operations_.front(); }
  // Appends a call, and numbers it.
  void Push(std::unique_ptr<Operation> operation) {
    operation->sequence = next_sequence_++;
    operations_.push_back(std::move(operation));
  }
  // Returns the first call of which some parts have not begun; null if there is
  // none.
  Operation* FirstToLaunch() const {
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      Operation* const operation = operations_[i].get();
      if (operation->launched < operation->plan.segments) return operation;
    }
    return nullptr;
  }
  // Removes the first call if all of its parts have ended, else returns null.
  std::unique_ptr<Operation> TakeFinished() {
    if (empty() || front().finished < front().plan.segments) return nullptr;
    return operations_.pop_front();
  }
  // Ends all calls with `why`: their Dones are due.
  void FailAll(const Status& why, DoneQueue* due);

  // Returns the first idle segment from number *from on, and counts *from past
  // it; null if there is none.
  Segment* IdleSegment(std::size_t* from) const {
    while (*from < segments_.size() && !segments_[*from]->idle()) ++*from;
    return *from == segments_.size() ? nullptr : segments_[(*from)++];
  }
  // Returns whether this rank may begin the `syncs` kSyncs of `schedule`
  // without writing to a slot that another rank has yet to read.
  bool HasSlotsFor(const Schedule& schedule, std::uint64_t syncs) const;
  // `syncs` more kSyncs begin. Returns the number of the first of them.
  std::uint64_t BeginSyncs(std::uint64_t syncs) {
    return std::exchange(next_sync_, next_sync_ + syncs);
  }

  // Appends the ranks that its segments wait for, other than for messages.
  void AddAwaited(std::vector<int>* ranks) const;
  // See Executor::StandsSince(). REQUIRES that it is not empty.
  Clock::Time StandsSince(Clock::Time now);

 private:
  std::uint64_t next_sequence_ = 1;
  std::uint64_t next_sync_ = 1;
  GrowingQueue<std::unique_ptr<Operation>> operations_;
  std::vector<Segment*> segments_;
  // What StandsSince() last saw of the first call, and when that changed.
  std::uint64_t seen_ = 0;  // Its sequence number.
  std::uint64_t seen_advances_ = 0;
  Clock::Time moved_at_{};
};

}  // namespace gradientflow
