#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/collectives/elements.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment_data.h"
#include "transports/arena.h"

namespace gradientflow {

// The one-sided actions of a segment whose ranks share memory. NOT thread-safe.
class SharedSide {
 public:
  SharedSide(const SegmentArgs& args, SegmentData& data)
      : args_(args), data_(data) {}
  ~SharedSide();
  SharedSide(const SharedSide&) = delete;
  SharedSide& operator=(const SharedSide&) = delete;

  // `first_sync` is the number of the schedule's first kSync; the following
  // ones count on from it. REQUIRES that the data has been started.
  void Start(std::uint64_t first_sync);
  void Reset();
  // Runs a kSync, kPull, kPullReduce or kPush. Returns false if it has to wait
  // for a peer, or takes more turns: it then runs again. At a kSync it looks
  // for its peers up to `looks` times.
  bool Run(const Action& action, int looks);
  // The actions are over: brings what was staged back to the call's buffer.
  void Finish();
  // Takes back the syncs of the part under way, before this rank's memory
  // changes hands. A peer that still reads that memory finds at its next kSync
  // that this rank is gone, and knows that what it read is void. Parts that are
  // done stay done: a peer may have yet to see their last kSync.
  void Retract();

  // The number of the kSync that it waits for or comes to next.
  std::uint64_t next_sync() const { return sync_; }
  // Grows with whatever Run() does.
  std::uint64_t moves() const { return moves_; }
  // Appends the ranks that have not come to the kSync under way.
  void AddAwaited(std::vector<int>* ranks) const;
  // Frees what it keeps of the arena for the next call, if no call has used
  // that since the last time. REQUIRES that the segment is idle.
  void Trim();

 private:
  struct Shown {  // What a sharing rank shows.
    int rank = 0;
    bool copied = false;       // Just the segment, without gaps.
    std::uint64_t offset = 0;  // In its arena.
    Elements data;             // If there is no Schedule::shown.
  };

  bool Sync(int looks);
  bool Pull(const Action& action);
  bool PullReduce(const Action& action);
  void Push(const Action& action);
  void Publish(SyncSlot* slot);
  bool AllHaveCome(int slot) const;
  bool Collect(int slot);
  bool Locate(Shown* shown);
  std::byte* SeenOf(const Shown& peer, const Slice& slice, std::size_t skip,
                    std::size_t count);
  std::size_t TurnEnd(const Action& action) const;
  bool TurnIsOver(const Action& action, std::size_t end);
  void Count(std::size_t elements, std::size_t peers, std::size_t ways);
  int SlotOf(std::uint64_t sync) const;
  bool IsInArena(Slice::Space space) const;
  std::byte* Bounce(std::size_t bytes);
  std::byte* CopyFor(std::size_t bytes);
  void Show(const Slice& slice);
  void Stage();
  template <typename F>
  void ForEachStaged(F&& function);
  std::size_t OutputEnd() const;

  const SegmentArgs& args_;
  SegmentData& data_;
  std::uint64_t first_sync_ = 0;  // Number of the part's first kSync,
  std::uint64_t sync_ = 0;        // and of the next one.
  bool published_ = false;
  std::uint64_t moves_ = 0;
  std::size_t pulled_ = 0;  // Elements that the current kPull... has done.
  std::vector<Shown> peers_;
  const void* shown_ = nullptr;    // What this rank publishes, in its arena,
  bool copied_ = false;            // and whether that is a copy of the segment,
  DType dtype_ = DType::kFloat32;  // with elements of this type.
  BufferView bounce_;     // Staging in the arena, kept from call to call.
  bool bounced_ = false;  // It has been used since the last Trim().
  bool staged_ = false;
  Slice kept_;  // Not staged in any case: Schedule::untouched.
};

}  // namespace gradientflow
