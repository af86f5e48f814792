#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/group_calls.h"
#include "gradientflow/collectives/placed_calls.h"
#include "gradientflow/collectives/schedule_cache.h"
#include "gradientflow/collectives/segment.h"
#include "gradientflow/collectives/segment_pool.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "kernels/kernels.h"
#include "transports/arena.h"
#include "transports/fabric.h"
#include "transports/remote_places.h"
#include "transports/remote_writes.h"

namespace gradientflow {

struct ExecutorOptions {
  std::size_t segment_bytes = std::size_t{256} << 10;
  int segments_in_flight = 8;
  // The algorithm of allreduces that name none; see CallPlanner.
  const CollectiveAlgorithm* algorithm = nullptr;
  bool trace = false;  // Logs a line for each collective.
  // How often a segment looks for its peers at a sync before the executor does
  // anything else, if no other segment runs. It is 1 unless each rank has a
  // core of its own.
  int sync_looks = 1;
};

// All are borrowed, and outlive the executor.
struct ExecutorArgs {
  Fabric* fabric = nullptr;
  SharedArena* arena = nullptr;  // Null if no peer shares memory.
  const kernels::CpuKernelTable* kernels = nullptr;
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;  // Null if nothing is recorded.
  Logger* logger = nullptr;
  // Null unless this rank can write to the memory of all others, or of those on
  // other hosts. REQUIRES slot memory of PlacedSlotBytes() if the group of all
  // ranks has all_place or hosts_place.
  RemotePlaces* places = nullptr;
  // What this rank writes to peers, for the trace. Null if it writes nothing.
  WriteCounter* writes = nullptr;
};

// Collectives over a fabric. The executor cuts each call into segments and runs
// the segments' schedules in the order of the calls, a window of them at a
// time (call_queue.h). The window bounds the memory, and how far a fast rank
// runs ahead. Each group of ranks has calls and windows of its own, so that no
// group waits for another.
// NOT thread-safe: called by the thread that drives.
class Executor final : public Collective {
 public:
  // `all` is the group of all ranks.
  Executor(const ExecutorArgs& args, const CallGroup& all,
           const CostModels& costs, const ExecutorOptions& options);
  ~Executor() override;

  int rank() const { return group().rank; }
  int size() const { return group().size; }
  void Start(const CollectiveCall& call, Done done) override;
  bool OwnParts(const CollectiveCall& call,
                std::vector<Extent>* parts) override;
  // The owner polls the fabric next, so that what is sent here leaves at once.
  bool Poll() override;
  // The calls that have ended: polling them runs their Dones. To be polled
  // after the fabric, whose messages end calls, too.
  Pollable& ended() { return ended_; }
  std::size_t in_flight() const override { return operations_ + ended_.size(); }
  bool Busy(GroupId id, Channel channel) const override;
  std::uint64_t bytes_sent(GroupId id, Channel channel) const override {
    return Find(id)->bytes_sent(channel);
  }

  // Takes calls of group `id` from now on. Returns kInvalidArgument if `id` is
  // 0 or open already, or for the reasons of Subgroup().
  Status OpenGroup(GroupId id, const std::vector<int>& ranks);
  // Returns kFailedPrecondition if calls of the group are in flight.
  Status CloseGroup(GroupId id);
  // Returns null if the group is not open.
  const CallGroup* FindGroup(GroupId id) const;

  // Groups whose gradients are placed. Slot memory has one window for that
  // besides those of all ranks, so a rank lends it to one group at a time.
  //
  // Lends it to a group of `ranks`: these may place messages there from now on.
  // Returns false if it is lent or not quiet, or if some of them have no places
  // for each other.
  bool LendPlaces(const std::vector<int>& ranks) {
    return placed_->Lend(ranks);
  }
  // Returns false while something that earlier calls of a group have sent from
  // there has yet to leave, which it does by itself. Returns true if it is
  // lent, or if calls keep it, since waiting would not help.
  bool PlacesAreQuiet() const { return placed_->IsQuiet(); }
  // All ranks of group `id` have lent it to the group: allreduces on
  // Channel::kGradients may be placed. REQUIRES that all ranks do so, and that
  // none is in flight.
  void UsePlaces(GroupId id);
  // Takes back what LendPlaces() has lent; calls in flight keep it, so it is
  // not lent again before they have ended. No more calls of group `id` are
  // placed, if it is open.
  void EndPlaces(GroupId id);

  // Grows with every message and every segment that is done. While a call hangs
  // and nothing else runs, the number stays the same.
  std::uint64_t advances() const { return advances_; }
  // Returns since when the calls of some group and channel have made no
  // progress, although others may have; `now` if all make progress. It compares
  // with what it saw at its last call, so it must be called regularly.
  Clock::Time StandsSince(Clock::Time now);
  // Gives back scratch memory that has been unused for some seconds. To be
  // called regularly.
  void TrimScratch(Clock::Time now);

  // Replaces the cost model by which algorithms are chosen. REQUIRES the same
  // model on all ranks, and that nothing is in flight.
  void SetCosts(const CostModels& costs);
  const CostModels& costs() const { return all_->planner.costs(); }
  // Sets CallGroup::same_dtypes to false for the group of all ranks. REQUIRES
  // that all ranks do so, and that nothing is in flight.
  void SetMixedDtypes() { all_->group.same_dtypes = false; }
  // Sets CallGroup::hosts_share to false for the group of all ranks, so that
  // no call uses the arena. REQUIRES the same as SetMixedDtypes().
  void SetNotSharing() {
    all_->group.all_share = all_->group.hosts_share = false;
    all_->planner.Forget();
    schedules_.Clear();
  }
  // Sets CallGroup::all_place and hosts_place to false for the group of all
  // ranks, so that no message is placed. REQUIRES the same as
  // SetMixedDtypes().
  void SetNoPlaces() {
    all_->group.all_place = all_->group.hosts_place = false;
    all_->planner.Forget();
    schedules_.Clear();
  }
  const CallGroup& group() const { return all_->group; }

  // The ranks that the calls in flight wait for, ascending.
  std::vector<int> AwaitedRanks() const;
  // The oldest call in flight of each queue, for reports: "allreduce #7 of 5
  // float32, step 3 bucket 1". Empty if there is none.
  std::string OldestCall() const override;

 private:
  GroupCalls* Find(GroupId id) const;
  void Prepare(GroupCalls* calls, Operation* operation);
  bool RunsAlone(const Operation& operation) const;
  void LaunchAlone(Operation* operation);
  Segment* StartNext(CallQueue* queue, std::size_t* from);
  bool StartPart(CallQueue* queue, Operation* operation, Segment* segment);
  bool Settle(Segment* segment);
  int Looks() const { return running_ == 1 ? options_.sync_looks : 1; }
  bool AdvanceLocal();
  void Retire();
  void Finish(const Operation& operation);
  void FailIfDeparted();
  void FailAll(const Status& why);
  bool traces() const { return options_.trace && args_.logger != nullptr; }
  void Trace(const Operation& operation) const;
  static void OnMessage(void* self, std::uint64_t cookie, std::uint32_t flags,
                        const Status& status);

  const ExecutorArgs args_;
  const ExecutorOptions options_;
  Slabs slabs_;
  Clock::Time trimmed_at_{};
  Mailboxes mailboxes_;
  std::uint64_t advances_ = 0;
  SegmentArgs segment_args_;
  std::unique_ptr<PlacedCalls> placed_;
  // Includes group 0, which is all_.
  std::unordered_map<GroupId, std::unique_ptr<GroupCalls>> groups_;
  GroupCalls* all_ = nullptr;
  std::vector<CallQueue*> busy_;  // Queues that have calls.
  std::size_t operations_ = 0;    // In all queues.
  std::vector<std::unique_ptr<Operation>> spare_;
  SegmentPool segments_{segment_args_};
  std::size_t running_ = 0;  // Segments that are not idle.
  DoneQueue ended_;
  ScheduleCache schedules_;
};

// One round of all that moves calls on host memory, for those who have no
// driver. Returns whether anything moved.
inline bool PollTogether(Executor& executor, Fabric& fabric) {
  bool moved = executor.Poll();
  moved |= fabric.Poll();
  moved |= executor.ended().Poll();
  return moved;
}

}  // namespace gradientflow
