#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"
#include "kernels/kernels.h"
#include "transports/collectives/call_plan.h"
#include "transports/collectives/collective.h"
#include "transports/collectives/segment.h"
#include "transports/fabric.h"
#include "transports/shm/arena.h"

namespace gradientflow {

struct ExecutorOptions {
  std::size_t segment_bytes = std::size_t{256} << 10;
  int segments_in_flight = 8;
  bool trace = false;  // One line per collective.
};

// Borrowed; outlives the executor.
struct ExecutorParts {
  Fabric* fabric = nullptr;
  SharedArena* arena = nullptr;  // Null if no peer shares memory.
  const kernels::KernelTable* kernels = nullptr;
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;
  Logger* logger = nullptr;
};

// Collectives over a fabric: cuts each call into segments and runs their
// schedules, a window of them at a time, in the order of the calls. The window
// is what bounds the memory and how far a fast rank runs ahead.
// NOT thread-safe, as its base says.
class Executor final : public Collective {
 public:
  Executor(const ExecutorParts& parts, const CallGroup& group,
           const CostModel& costs, const ExecutorOptions& options);
  ~Executor() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  void Start(const CollectiveCall& call, Done done) override;
  bool Poll() override;
  std::size_t in_flight() const override { return operations_ + ended_.size(); }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }

  // Grows with every message and segment done: a call that hangs lets it stand.
  std::uint64_t advances() const { return advances_; }

  // Replaces the model by which algorithms are chosen; the same on all ranks,
  // with nothing in flight.
  void SetCosts(const CostModel& costs) { planner_.SetCosts(costs); }
  const CostModel& costs() const { return planner_.costs(); }
  // CallGroup::same_dtypes = false from now on; on all ranks, with nothing in
  // flight.
  void SetMixedDtypes() {
    group_.same_dtypes = false;
    planner_.SetMixedDtypes();
  }
  const CallGroup& group() const { return group_; }

  // Ranks that the calls in flight wait for, ascending.
  std::vector<int> AwaitedRanks() const;
  // The oldest call in flight of each channel, for reports: "allreduce #7 of 5
  // float32, step 3 bucket 1". Empty if there is none.
  std::string OldestCall() const override;

 private:
  struct Ended {
    Done done;
    std::uint32_t flags;
    Status status;
  };
  // Calls in order, and the segments that run them: each channel has its own,
  // so that none waits for the other.
  struct Queue {
    std::uint64_t next_sequence = 1;
    std::uint64_t next_sync = 1;
    std::deque<std::unique_ptr<Operation>> operations;
    std::size_t first_segment = 0;  // Of options_.segments_in_flight.
  };
  // What a cached schedule depends on.
  using ScheduleKey =
      std::tuple<CollectiveKind, AllreduceAlgorithm, int, std::size_t, bool>;

  void Prepare(Operation* operation);
  bool RunsAlone(const Operation& operation) const;
  void LaunchAlone(Operation* operation);
  bool Launch(Queue* queue);
  void LaunchNext(Queue* queue, Operation* operation, Segment* segment);
  std::shared_ptr<const Schedule> ScheduleOf(const Operation& operation,
                                             std::size_t count);
  bool Settle(Segment* segment);
  void Retire();
  void Finish(const Operation& operation);
  void FailIfDeparted();
  void FailAll(const Status& why);
  bool RunEnded();
  void Trace(const Operation& operation) const;
  static void OnMessage(void* self, std::uint64_t cookie, std::uint32_t flags,
                        const Status& status);

  const ExecutorParts parts_;
  CallGroup group_;
  CallPlanner planner_;
  const ExecutorOptions options_;
  Slabs slabs_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t advances_ = 0;
  SegmentContext context_;
  std::array<Queue, kChannels> queues_;
  std::size_t operations_ = 0;  // In all queues.
  std::vector<std::unique_ptr<Operation>> spare_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::size_t running_ = 0;  // Segments not idle.
  bool retracted_ = false;
  std::deque<Ended> ended_;
  std::map<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace gradientflow
