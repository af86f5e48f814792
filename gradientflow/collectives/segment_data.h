#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/elements.h"
#include "gradientflow/collectives/mailboxes.h"
#include "gradientflow/collectives/operation.h"
#include "gradientflow/collectives/placed_slots.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/slabs.h"
#include "kernels/kernels.h"
#include "transports/arena.h"
#include "transports/fabric.h"

namespace gradientflow {

// What segments use of their surroundings. All of it outlives them.
struct SegmentArgs {
  Fabric& fabric;
  SharedArena* arena;  // Null if no peer shares memory.
  const kernels::CpuKernelTable& kernels;
  Slabs& slabs;
  Mailboxes& mailboxes;
  // Runs when a message ends. The cookie contains the segment's slot and the
  // argument of its OnMessage().
  void (*on_message)(void* self, std::uint64_t cookie, std::uint32_t flags,
                     const Status& status);
  void* self;
};

// The elements of one segment of an operation: where each slice of the schedule
// is in memory, and how it gets into its wire form and back. The sides of a
// segment (messages, shared memory, placed messages) work on this.
// NOT thread-safe.
class SegmentData {
 public:
  explicit SegmentData(const SegmentArgs& args) : args_(args) {}
  SegmentData(const SegmentData&) = delete;
  SegmentData& operator=(const SegmentData&) = delete;

  // Takes `part`, number `index` of the operation. If the schedule's messages
  // are placed, `placed` is their slot, else null. Everything is borrowed until
  // Reset().
  void Start(Operation* operation, std::uint64_t index, Extent part,
             std::shared_ptr<const Schedule> schedule, PlacedSlot* placed);
  // Gives back the memory that it took.
  void Reset();

  Operation* operation() const { return operation_; }  // Null if idle.
  const CollectiveCall& call() const { return operation_->call; }
  const Schedule& schedule() const { return *schedule_; }
  std::uint64_t index() const { return index_; }
  std::size_t begin() const { return begin_; }
  std::size_t count() const { return count_; }
  // The dtype in which the data is kept while the segment runs.
  DType dtype() const { return dtype_; }
  bool converts() const { return dtype_ != call().wire; }
  std::size_t element_bytes() const { return SizeOf(dtype_); }
  std::size_t wire_bytes() const { return operation_->wire_bytes(); }

  // From here on the data is in `staged`, gapless and of `dtype`. With null,
  // only its dtype changes.
  void MoveTo(std::byte* staged, DType dtype);

  // Whether the call's buffer has a block per rank.
  bool IsBlocked(Slice::Space space) const;
  // Where a slice of the schedule begins in the call's buffer, and in the
  // memory that MemoryOf() returns.
  std::size_t PositionInCall(const Slice& slice) const;
  std::size_t Position(const Slice& slice) const;
  const Elements& MemoryOf(const Slice& slice) const;
  // Where element number `elements` of kScratch is.
  std::byte* Scratch(std::size_t elements) const;
  // Where the results of an allreduce that converts are kept in their wire
  // form, from when they arrive or are settled until the segment ends. Results
  // that are passed on are sent from here, so that they need no second
  // conversion.
  std::byte* Image(const Slice& slice);

  // Writes what a kSend sends to `wire`, and settles the data if the action
  // does.
  void Pack(const Action& action, std::byte* wire);
  // Writes a result that has come in its wire form to the data.
  void Unpack(const Slice& dst, const std::byte* wire);
  // What results are multiplied by as this rank writes their final form.
  float Unscale() const { return converts() ? operation_->unscale : 1.0F; }

  // Names the call and the segment to peers that come to it.
  std::uint64_t Signature() const;
  // The error of a rank that has come to another call.
  Status AnotherCall(int rank) const;

  // kFlagNonfinite once some rank, or this one, has seen a result that is not
  // finite.
  std::uint32_t flags() const {
    return nonfinite_ != 0 ? flags_ | kFlagNonfinite : flags_;
  }
  void AddFlags(std::uint32_t flags) { flags_ |= flags & kFlagNonfinite; }
  // For a kernel, which sets it; null if the kernel need not look.
  std::uint32_t* nonfinite(bool wanted) {
    return wanted ? &nonfinite_ : nullptr;
  }

  std::uint64_t& BytesSent() { return *operation_->bytes_sent; }
  // The first failure of the segment itself; OK if there is none.
  const Status& status() const { return status_; }
  void Fail(const Status& why) {
    if (status_.ok()) status_ = why;
  }

 private:
  const SegmentArgs& args_;
  Operation* operation_ = nullptr;
  std::shared_ptr<const Schedule> schedule_;
  PlacedSlot* placed_ = nullptr;
  std::uint64_t index_ = 0;
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  Elements data_;
  Elements scratch_elements_;      // Of the wire dtype.
  DType dtype_ = DType::kFloat32;  // The dtype of data_, and of an input.
  std::size_t data_begin_ = 0;     // Position of element `begin_` in data_.
  Slabs::Slab scratch_;
  Slabs::Slab image_;  // See Image(); taken at the first use.
  std::uint32_t flags_ = 0;
  std::uint32_t nonfinite_ = 0;
  Status status_;
};

}  // namespace gradientflow
