#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/done.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/work_end.h"
#include "gradientflow/nccl/issue.h"
#include "gradientflow/nccl/launch_order.h"
#include "gradientflow/nccl/nccl_comm.h"
#include "gradientflow/nccl/nccl_memory.h"
#include "gradientflow/nccl/operation.h"
#include "gradientflow/observe/logger.h"
#include "gradientflow/observe/recorder.h"

namespace gradientflow {

// All are borrowed, and outlive the queue.
struct NcclQueueArgs {
  Device* device = nullptr;
  NcclMemory* memory = nullptr;
  LaunchOrder* order = nullptr;  // The device's.
  double turn_seconds = 0;       // See NcclArgs.
  const Clock* clock = nullptr;
  Recorder* recorder = nullptr;  // May be null.
  Logger* logger = nullptr;      // May be null.
  bool trace = false;
  NcclSums sums = NcclSums::kFloat32;
  CallGroup group;
};

// The calls of one channel: a communicator, and the calls in flight, in order.
// The host only polls events; it never blocks.
//
//   before  pack b ─┐ pack b + 1 ─┐             each arrow is an event
//   wire            └ NCCL b ───┬─┴ NCCL b + 1 ─┐
//   after                       └ unpack b      └ unpack b + 1
//
// So the conversions of a call hide behind the transfer of others. A call that
// converts nothing uses the wire alone.
// NOT thread-safe.
class NcclQueue {
 public:
  // Also allocates what calls need on the device, and `staging_bytes` for those
  // that convert.
  static Result<std::unique_ptr<NcclQueue>> Create(
      const NcclQueueArgs& args, std::shared_ptr<const NcclApi> api,
      std::size_t staging_bytes);
  ~NcclQueue();

  // Calls begin after all work on this stream, except those that have a
  // `before` and need no pass on it.
  Stream& before() { return *before_; }
  // What is on this stream after Join() runs after all calls before that.
  Stream& wire() { return *wire_; }
  Status Join();
  // Adds what the queue has given to the device.
  void AddWork(WorkEnd* end) {
    for (auto* stream : {&before_, &wire_, &after_}) end->Add(**stream);
  }
  NcclComm& comm() { return comm_; }

  // REQUIRES a valid call.
  void Push(const CollectiveCall& call, Done done);
  std::size_t calls() const { return operations_.size(); }

  // Issues the calls that can be issued, and moves those that have ended to
  // *ended. Returns whether anything moved. An error is the end of the queue.
  Result<bool> Advance(DoneQueue* ended);

  // Calls that may be submitted ahead without a look at the device. A device's
  // queue of launches holds about 1,000, of which a call takes two or three; a
  // launch that finds it full would block the host.
  static constexpr std::size_t kAhead = 192;
  // What has been submitted so far has ended. Moves the calls at the front that
  // were submitted ahead to *ended.
  void Passed(DoneQueue* ended);

  // The time since when calls are in flight and none has ended. REQUIRES
  // calls() > 0.
  Clock::Time standing_since() const;
  // Nobody asks for the end of calls that are submitted ahead until their step
  // ends. So this asks the device before such calls count as standing, which
  // they do if it has not answered for a while; if they have ended,
  // standing_since() is now. REQUIRES calls() > 0.
  bool Stands();
  // Returns whether the oldest call needs all ranks in order to end on any.
  // REQUIRES calls() > 0.
  bool NeedsAll() const;
  // Describes the oldest call: "allreduce #7 of 5 float32, step 3 bucket 1".
  // REQUIRES calls() > 0.
  std::string OldestCall() const;
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  // Whether the staging memory can be a window: there is none, or it is NCCL's.
  bool FitsWindow() const {
    return staging_.memory == nullptr || staging_.from_nccl;
  }
  // Begins to make the staging memory a symmetric window, on all ranks
  // together; nothing without memory or windows. REQUIRES FitsWindow() on all
  // ranks, and comm().Ready(), as does what follows.
  Status BeginWindow();
  // Registers the staging memory, if there is any and it is no window. If NCCL
  // refuses, the queue goes on without.
  void RegisterStaging();
  void DeregisterStaging();

  // After comm().Abort(): returns whether the device has finished all work for
  // this queue.
  bool Drained();
  // Ends all calls with `why`, each with its name added.
  void EndAll(const Status& why, DoneQueue* ended);

 private:
  struct Staging {
    DeviceMemory memory;
    bool from_nccl = false;
    std::size_t bytes = 0;
    void* handle = nullptr;
    nccl::Window window = nullptr;
  };

  NcclQueue(const NcclQueueArgs& args, std::shared_ptr<const NcclApi> api);
  Status Allocate();
  Status GrowStaging(std::size_t bytes);
  Status IssueNext();
  IssueTarget Target(const NcclOperation& operation);
  Status TakeHalf(NcclOperation* operation, std::size_t bytes);
  Status Order(Stream& first, Stream& then);
  std::size_t StagingBytes(const NcclOperation& operation) const;
  Status Continue(NcclOperation* operation);
  Status Settle(NcclOperation* operation);
  Result<bool> Issue();
  Result<bool> HasRoom();
  bool HasTurn();
  Status CountAhead(Stream& last);
  Result<bool> Retire(DoneQueue* ended);
  void Finish(const NcclOperation& operation, DoneQueue* ended);
  void Trace(const NcclOperation& operation, Clock::Time now) const;

  const NcclQueueArgs args_;
  NcclComm comm_;
  DeviceMemory verdicts_;  // On the device: one per slot, and 4 bytes more.
  DeviceMemory seen_;      // Pinned: one per slot.
  std::vector<NcclSlot> slots_;
  Staging staging_;
  // Earlier, smaller staging memory. Calls in flight may still use it, and to
  // free it would mean to wait for the device. Each is at most half of the
  // next.
  std::vector<Staging> outgrown_;
  // The staging memory serves two calls in turn. A half is free again after its
  // event.
  std::unique_ptr<Event> half_free_[2];
  int half_ = 0;
  std::unique_ptr<Event> ordered_;  // Recorded anew for each order of streams.
  // Destroyed before the above; wait for their work.
  std::unique_ptr<Stream> before_;
  std::unique_ptr<Stream> wire_;
  std::unique_ptr<Stream> after_;

  std::vector<std::unique_ptr<NcclOperation>> operations_;
  std::vector<std::unique_ptr<NcclOperation>> spare_;
  std::size_t issued_ = 0;  // Number of issued calls in the queue.
  bool issuing_ = false;    // NCCL has yet to accept the last one issued.
  // Since when the next call waits for those of other communicators.
  std::optional<Clock::Time> no_turn_since_;
  std::size_t next_slot_ = 0;
  std::size_t slots_taken_ = 0;
  std::uint64_t passed_ = 0;  // See Passed(): a sequence number.
  // The end of all work that had been submitted when Stands() first asked.
  std::unique_ptr<Event> ahead_end_;
  std::optional<Clock::Time> stands_asked_at_;
  bool after_has_work_ = false;  // Since the last Join().
  // Calls submitted ahead that may still be in the device's queue, in two
  // parts. The older part ends with half_end_, which is looked at when there
  // are too many.
  std::size_t ahead_older_ = 0;
  std::size_t ahead_newer_ = 0;
  std::unique_ptr<Event> half_end_;
  Clock::Time looked_at_{};
  std::uint64_t next_sequence_ = 1;
  std::uint64_t bytes_sent_ = 0;
  Clock::Time last_end_{};
  std::optional<WorkEnd> end_;  // From the end of an abort on.
};

}  // namespace gradientflow
