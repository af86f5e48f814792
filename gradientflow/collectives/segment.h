#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/collectives/mailboxes.h"
#include "gradientflow/collectives/operation.h"
#include "gradientflow/collectives/placed_slots.h"
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

// Runs one rank's schedule for one segment of an operation. For each round it
// posts the messages, converts to the wire dtype as it sends, converts back or
// accumulates as it receives, and runs the local steps. The object is used
// again for segment after segment. NOT thread-safe.
class Segment {
 public:
  Segment(const SegmentArgs& args, std::uint32_t slot)
      : args_(args), slot_(slot) {}
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Starts on elements [begin, begin + count) of each block. `first_sync` is
  // the number of the schedule's first kSync; the following ones count on from
  // it. If the schedule's messages are placed, the segment has the slot for
  // itself until Reset().
  struct Means {
    std::uint64_t first_sync = 0;
    PlacedSlot* placed = nullptr;
  };
  void Start(Operation* operation, std::uint64_t index, Extent part,
             std::shared_ptr<const Schedule> schedule, const Means& means);

  // A message has ended well. `step` is the low half of the cookie that the
  // fabric got.
  void OnMessage(std::uint32_t step, std::uint32_t flags);

  // Goes as far as possible without waiting. Returns whether anything moved. If
  // the segment itself failed, status() says why. At a kSync it looks for its
  // peers up to `looks` times before it returns.
  bool Advance(int looks = 1);

  bool idle() const { return operation_ == nullptr; }
  bool done() const { return operation_ != nullptr && done_; }
  // True while messages are pending: until they end, Advance() has nothing to
  // do.
  bool awaits_messages() const { return traffic_[round_ % 2].pending > 0; }
  const Status& status() const { return status_; }
  Operation* operation() const { return operation_; }
  // Whether it shows its peers a copy in a mailbox.
  bool mailed() const { return schedule_ != nullptr && schedule_->mailed; }
  // The number of the kSync that it waits for or comes to next.
  std::uint64_t next_sync() const { return sync_; }
  std::size_t begin() const { return begin_; }
  std::size_t count() const { return count_; }
  std::uint32_t flags() const { return flags_; }
  // Appends the ranks that have not come to the current kSync, or have not
  // placed what this round awaits.
  void AddAwaited(std::vector<int>* ranks) const;
  // The fabric has failed, so that what was put is not lent any more.
  void PutsAreOver() {
    if (placed_ != nullptr) placed_->AbandonPayloads();
  }
  // Takes back the syncs of the part under way, before this rank's memory
  // changes hands. A peer that still reads that memory finds at its next kSync
  // that this rank is gone, and knows that what it read is void. Parts that are
  // done stay done: a peer may have yet to see their last kSync.
  void Retract();
  // Gives back what the segment used and makes it ready for the next Start().
  void Reset();
  // What an idle segment keeps of the arena for its next call, in bytes.
  std::size_t kept_bytes() const { return idle() ? bounce_.bytes : 0; }
  // Frees that if no call has used it since the last time.
  void Trim();

 private:
  struct Encoded {  // A slice that this round has converted already.
    Slice slice;
    const std::byte* wire = nullptr;
  };
  struct Decode {  // A message to convert when it has arrived.
    std::uint32_t step = 0;
    std::byte* wire = nullptr;
  };
  // What a round has under way. Receives of the next round may be posted while
  // this round runs, so there are two of these, by the parity of the round.
  struct Traffic {
    bool receives_posted = false;
    int pending = 0;
    std::vector<Decode> decodes;
    std::vector<Slabs::Slab> slots;
  };
  struct Shared {  // What a sharing rank shows.
    int rank = 0;
    bool copied = false;       // Just the segment, without gaps.
    std::uint64_t offset = 0;  // In its arena.
    Elements data;             // If there is no Schedule::shown.
  };

  const std::vector<Step>& steps() const { return schedule_->rounds[round_]; }
  bool converts() const { return dtype_ != operation_->call.wire; }
  std::size_t element_bytes() const { return SizeOf(dtype_); }
  bool IsBlocked(Slice::Space space) const;
  std::size_t Position(const Slice& slice) const;
  std::size_t PositionInCall(const Slice& slice) const;
  const Elements& MemoryOf(const Slice& slice) const;
  std::byte* Scratch(std::size_t elements) const;
  std::byte* NewSlot(std::size_t bytes, std::size_t round);
  std::byte* Image(const Slice& slice);
  // What results are multiplied by as this rank writes their final form.
  float Unscale() const { return converts() ? operation_->unscale : 1.0F; }
  std::uint64_t Cookie(std::uint32_t step, std::size_t round) const;
  MessageId NextId(std::vector<std::uint16_t>* ordinals, int peer);

  void PostRound();
  void PostReceives(std::size_t round);
  void PostEarlyReceives();
  void NextRound();
  void PostRecv(const Step& step, std::uint32_t index, std::size_t round);
  const std::byte* WireImage(const Step& step);
  void Pack(const Step& step, std::byte* wire);
  void Unpack(const Slice& dst, const std::byte* wire);
  std::uint64_t PartSignature() const;
  void BeginPlaced();
  Status AnotherCall(int rank) const;
  std::byte* PlacedScratch(std::size_t elements) const;
  void PostPlacedRound();
  void PutContribution(const Step& step);
  void PutSum(const Step& step);
  std::size_t PlacedOffset(const Slice& slice) const;
  RemotePlace ResultPlace(const Slice& block) const;
  std::byte* Reachable(const Slice& slice) const;
  std::byte* ReachablePart(const Slice& slice) const;
  void AwaitPlaced(const Step& step, std::uint32_t index);
  void TakePlaced(const Step& step, std::uint32_t flags);
  void FailBy(int peer);
  void OnPlaced(std::uint32_t step, std::uint32_t flags);
  void AddUnplaced(std::vector<int>* ranks) const;
  bool RunLocal(const Step& step, int looks);
  void RunReduce(const Step& step);
  void RunReduceMany(const Step& step);
  void RunCopy(const Step& step);
  bool RunSync(int looks);
  void Publish(SyncSlot* slot);
  bool AllHaveCome(int slot) const;
  bool Collect(int slot);
  bool RunPull(const Step& step);
  bool RunPullReduce(const Step& step);
  void RunPush(const Step& step);
  std::byte* SeenOf(const Shared& peer, const Slice& slice, std::size_t skip,
                    std::size_t count);
  std::size_t TurnEnd(const Step& step) const;
  void CountShared(std::size_t elements, int peers, int ways);
  int SlotOf(std::uint64_t sync) const;
  bool IsInArena(Slice::Space space) const;
  std::byte* Bounce(std::size_t bytes);
  void Show(const Slice& slice);
  void Stage();
  void Unstage();
  template <typename F>
  void ForEachStaged(F&& function);
  std::size_t OutputEnd() const;
  std::uint32_t* nonfinite(bool wanted) {
    return wanted ? &nonfinite_ : nullptr;
  }

  std::uint64_t& BytesSent() { return *operation_->bytes_sent; }

  const SegmentArgs& args_;
  const std::uint32_t slot_;
  Operation* operation_ = nullptr;
  std::shared_ptr<const Schedule> schedule_;
  std::uint64_t index_ = 0;
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  Elements data_;
  Elements scratch_elements_;      // Of the wire dtype.
  DType dtype_ = DType::kFloat32;  // The dtype of data_, and of an input.
  std::size_t data_begin_ = 0;     // Position of element `begin_` in data_.
  bool done_ = false;
  Status status_;
  std::uint32_t flags_ = 0;
  std::uint32_t nonfinite_ = 0;

  std::size_t round_ = 0;
  bool posted_ = false;
  std::array<Traffic, 2> traffic_;
  std::size_t local_ = 0;            // The next local step of the round.
  std::vector<std::uint16_t> sent_;  // Number of messages so far, by peer.
  std::vector<std::uint16_t> received_;
  std::vector<Encoded> encoded_;
  Slabs::Slab scratch_;
  Slabs::Slab image_;  // See Image(); taken at the first use.

  PlacedSlot* placed_ = nullptr;  // Null unless messages are placed.
  std::uint64_t signature_ = 0;   // PartSignature(), if they are.
  // The segment's elements, if the network reaches all of them where they are;
  // else null. And their name for peers.
  std::byte* reached_ = nullptr;
  RemotePlace reached_name_;

  std::uint64_t first_sync_ = 0;  // Number of the part's first kSync,
  std::uint64_t sync_ = 0;        // and of the next one.
  bool published_ = false;
  std::size_t pulled_ = 0;  // Elements that the current kPull... has done.
  std::vector<Shared> shared_;
  const void* shown_ = nullptr;  // What this rank publishes, in its arena,
  bool copied_ = false;          // and whether that is a copy of the segment,
  DType shown_dtype_ = DType::kFloat32;  // with elements of this type.
  BufferView bounce_;     // Staging in the arena, kept from call to call.
  bool bounced_ = false;  // It has been used since the last Trim().
  bool staged_ = false;
  Slice kept_;  // Not staged in any case: Schedule::untouched.
};

}  // namespace gradientflow
