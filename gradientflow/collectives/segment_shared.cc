#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/segment.h"

// The schedule steps of a segment whose ranks share memory:
//
//   kSync         publishes what this rank shows, then waits until all sharing
//                 ranks have done so: shared_ has what they show
//   kPull         copies a slice of what one rank shows
//   kPullReduce   reads one slice of what each rank shows and sums it, tile by
//                 tile
//   kPush         writes this rank's slice to all buffers
//
// Nothing travels, but everything is rounded as if it had, so that results do
// not depend on the fabric. Stage() decides what is shown. That is the call's
// buffer, or, if peers cannot reach it or are not to see it change, a copy of
// the segment. If peers write to the copy, Unstage() copies it back.
namespace gradientflow {
namespace {

// Less than the L2 cache of any core.
constexpr std::size_t kTileBytes = std::size_t{32} << 10;
// The bytes that one Advance() reduces before other segments have their turn.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
// What is read from mailboxes is read in the turn of its sync. So a segment
// that has gone past a sync reads that sync's boxes no more, which is what
// Executor::HasSlotsFor() takes for granted.
static_assert(Mailboxes::kBoxBytes <= kTurnBytes);
// In SyncSlot::flags: the published memory holds just the segment, without
// gaps.
constexpr std::uint32_t kCopied = 1U << 8;

// Tells the core that this thread only waits for another one.
void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// Peers reach only memory in the arena. In a mixed group the ranks also agree
// that it has no gaps and the wire dtype. A buffer that is different goes
// through a copy in the arena.
void Segment::Stage() {
  if (schedule_->shown) return Show(*schedule_->shown);
  const CollectiveCall& call = operation_->call;
  const bool mixed = !operation_->plan.same_dtypes;
  const bool as_agreed = !mixed || (!converts() && call.extents.empty());
  shown_ = call.output;
  if (as_agreed && IsInArena(Slice::Space::kData)) return;
  staged_ = copied_ = true;
  if (mixed) dtype_ = shown_dtype_ = call.wire;
  shown_ = Bounce(count_ * element_bytes());
  if (shown_ == nullptr) return;
  // If the sum is made in another dtype than the buffer's, the rank's own block
  // has to be copied, too.
  kept_ = mixed ? Slice() : schedule_->untouched;
  ForEachStaged([&](std::byte* run, std::size_t n, std::byte* staged) {
    args_.kernels.convert(
        {run, call.dtype, staged, dtype_, nullptr, n, 1.0F, nullptr}, nullptr);
  });
  if (kept_.count > 0) return;
  data_ = Elements(bounce_.data, element_bytes());
  data_begin_ = 0;
}

// Returns `bytes` of this rank's arena, or null with the reason in status_.
std::byte* Segment::Bounce(std::size_t bytes) {
  bounced_ = true;
  if (bounce_.bytes < bytes) {
    if (bounce_.data != nullptr) args_.arena->Free(bounce_);
    bounce_ = {};
    Result<BufferView> bounce = args_.arena->Allocate(bytes);
    if (!bounce.ok()) {
      status_ = bounce.status();
      return nullptr;
    }
    bounce_ = bounce.value();
  }
  return bounce_.data;
}

void Segment::Trim() {
  if (!idle() || std::exchange(bounced_, false)) return;
  if (bounce_.data == nullptr) return;
  args_.arena->Free(bounce_);
  bounce_ = {};
}

// Whether peers reach the call's buffer.
bool Segment::IsInArena(Slice::Space space) const {
  const CollectiveCall& call = operation_->call;
  const std::size_t bytes = SizeOf(call.dtype);
  if (call.kind == CollectiveKind::kAllreduce) {
    return args_.arena->Contains(call.output, OutputEnd() * bytes);
  }
  const CallBuffers buffers = BuffersOf(call, *operation_->group);
  return space == Slice::Space::kInput
             ? args_.arena->Contains(call.input, buffers.input * bytes)
             : args_.arena->Contains(call.output, buffers.output * bytes);
}

// Shows the slice in place, or a copy of it. In a mixed group the copy has the
// wire dtype, as the ranks have agreed.
void Segment::Show(const Slice& slice) {
  const CollectiveCall& call = operation_->call;
  if (!operation_->plan.same_dtypes) shown_dtype_ = call.wire;
  if (slice.count == 0) return;
  const bool input = slice.space == Slice::Space::kInput;
  if (!schedule_->mailed && shown_dtype_ == dtype_ && IsInArena(slice.space)) {
    shown_ = input ? call.input : call.output;
    return;
  }
  const std::size_t bytes = SizeOf(shown_dtype_);
  std::byte* copy = nullptr;
  if (schedule_->mailed) {
    assert(slice.count * bytes <= Mailboxes::kBoxBytes);
    const Result<std::byte*> box =
        args_.mailboxes.At(call.channel, first_sync_);
    status_ = box.status();
    copy = box.ok() ? box.value() : nullptr;
  } else {
    copy = Bounce(slice.count * bytes);
  }
  if (copy == nullptr) return;
  shown_ = copy;
  copied_ = true;
  const std::size_t piece = IsBlocked(slice.space) ? count_ : slice.count;
  for (std::size_t at = 0; at < slice.count; at += piece) {
    MemoryOf(slice).ForEachRun(
        Position({slice.space, at, piece}), piece,
        [&](std::byte* run, std::size_t n, std::size_t offset) {
          args_.kernels.convert({run, call.dtype, copy + (at + offset) * bytes,
                                 shown_dtype_, nullptr, n, 1.0F, nullptr},
                                nullptr);
        });
  }
}

void Segment::Unstage() {
  const DType dtype = operation_->call.dtype;
  // A result that was staged in the dtype of its buffer has been unscaled in
  // the staging already.
  const float unscale = dtype != dtype_ ? operation_->unscale : 1.0F;
  ForEachStaged([&](std::byte* run, std::size_t n, const std::byte* staged) {
    args_.kernels.convert({staged, dtype_, run, dtype, nullptr, n, unscale,
                           nonfinite(dtype != dtype_)},
                          nullptr);
  });
}

// Calls function(run, elements, staged) for each contiguous run of the buffer
// that is staged; `staged` is its place in the staging memory.
template <typename F>
void Segment::ForEachStaged(F&& function) {
  const auto each = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    operation_->data.ForEachRun(
        begin_ + begin, end - begin,
        [&](std::byte* run, std::size_t n, std::size_t offset) {
          function(run, n, bounce_.data + (begin + offset) * element_bytes());
        });
  };
  each(0, kept_.offset);
  each(kept_.offset + kept_.count, count_);
}

// Number of elements from the start of the call's buffer to the end of its last
// extent.
std::size_t Segment::OutputEnd() const {
  const CollectiveCall& call = operation_->call;
  if (call.extents.empty()) return call.count;
  return call.extents.back().begin + call.extents.back().count;
}

// `arrived` is stored last, with release: a peer that sees it sees the rest.
void Segment::Publish(SyncSlot* slot) {
  slot->offset = shown_ == nullptr ? 0 : args_.arena->OffsetOf(shown_);
  slot->signature = PartSignature();
  slot->flags = (copied_ ? kCopied : 0) |
                (nonfinite_ != 0 ? kFlagNonfinite : flags_ & kFlagNonfinite);
  slot->arrived.store(sync_, std::memory_order_release);
  args_.arena->RingSleepers();
}

// Each channel counts its own syncs and has its own slots.
int Segment::SlotOf(std::uint64_t sync) const {
  constexpr int kSlots = kSyncSlots / kChannels;
  return static_cast<int>(operation_->call.channel) * kSlots +
         static_cast<int>(sync % kSlots);
}

// Peers of a blocking call come almost at the same time. To look again at once
// finds them earlier than the next turn would.
bool Segment::RunSync(int looks) {
  const int slot = SlotOf(sync_);
  if (!published_) {
    published_ = true;
    Publish(&args_.arena->slot(args_.fabric.rank(), slot));
  }
  while (!AllHaveCome(slot)) {
    if (--looks <= 0) return false;
    Relax();
  }
  if (!Collect(slot)) return false;
  published_ = false;
  ++sync_;
  return status_.ok();
}

void Segment::Retract() {
  const std::uint64_t end = sync_ + (published_ ? 1 : 0);
  for (std::uint64_t sync = first_sync_; sync < end; ++sync) {
    args_.arena->slot(args_.fabric.rank(), SlotOf(sync))
        .arrived.store(0, std::memory_order_seq_cst);
  }
}

bool Segment::AllHaveCome(int slot) const {
  const std::vector<int>& members = args_.arena->members();
  return std::all_of(members.begin(), members.end(), [&](int rank) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    return theirs.arrived.load(std::memory_order_acquire) >= sync_;
  });
}

// Finds out what the sharing ranks show: shared_. Returns false and fails the
// segment if a rank came to a different call. REQUIRES AllHaveCome().
bool Segment::Collect(int slot) {
  const std::vector<int>& members = args_.arena->members();
  const SyncSlot& mine = args_.arena->slot(args_.fabric.rank(), slot);
  const CollectiveCall& call = operation_->call;
  const bool mixed = !operation_->plan.same_dtypes;
  const std::size_t end = mixed ? call.count : OutputEnd();
  shared_.clear();
  for (int rank : members) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    if (theirs.signature != mine.signature) {
      status_ = AnotherCall(rank);
      return false;
    }
    flags_ |= theirs.flags & kFlagNonfinite;
    Shared& shared = shared_.emplace_back();
    shared.rank = rank;
    shared.copied = (theirs.flags & kCopied) != 0;
    shared.offset = theirs.offset;
    if (schedule_->shown) continue;
    std::byte* base = args_.arena->At(
        rank, theirs.offset, (shared.copied ? count_ : end) * element_bytes());
    if (base == nullptr) {
      status_ = Status(StatusCode::kDataLoss,
                       StrCat("rank ", rank, " published offset ",
                              theirs.offset, ", outside its memory"));
      return false;
    }
    shared.data = shared.copied || mixed ? Elements(base, element_bytes())
                                         : operation_->data.At(base);
  }
  return true;
}

// Returns where elements [skip, skip + count) of `slice` are in what `peer`
// shows, or null if they are outside its memory; status_ then says so.
std::byte* Segment::SeenOf(const Shared& peer, const Slice& slice,
                           std::size_t skip, std::size_t count) {
  const std::size_t begin =
      skip + (peer.copied ? slice.offset : PositionInCall(slice));
  if (!schedule_->shown) return peer.data.Contiguous(begin, count);
  const std::size_t bytes = SizeOf(shown_dtype_);
  std::byte* at =
      args_.arena->At(peer.rank, peer.offset + begin * bytes, count * bytes);
  if (at == nullptr) {
    status_ =
        Status(StatusCode::kDataLoss,
               StrCat("rank ", peer.rank, " shows offset ", peer.offset, ": ",
                      count, " elements of ", bytes, " bytes from number ",
                      begin, " on are outside its memory"));
  }
  return at;
}

// The elements of the step that are done when this turn of it ends.
std::size_t Segment::TurnEnd(const Step& step) const {
  return std::min(step.dst.count, pulled_ + kTurnBytes / element_bytes());
}

bool Segment::RunPull(const Step& step) {
  const auto peer =
      std::find_if(shared_.begin(), shared_.end(), [&](const Shared& shared) {
        return shared.rank == operation_->group->FabricRank(step.peer);
      });
  const std::size_t end = TurnEnd(step);
  MemoryOf(step.dst).ForEachRun(
      Position(step.dst) + pulled_, end - pulled_,
      [&](std::byte* mine, std::size_t run, std::size_t done) {
        const std::byte* theirs = SeenOf(*peer, step.src, pulled_ + done, run);
        if (theirs == nullptr) return;
        std::memcpy(mine, theirs, run * element_bytes());
      });
  pulled_ = end;
  if (!status_.ok() || pulled_ < step.dst.count) return false;
  pulled_ = 0;
  CountShared(step.dst.count, 1, 1);
  return true;
}

// A tile is read from all ranks and written to all ranks while it is in the
// cache.
bool Segment::RunPullReduce(const Step& step) {
  const auto parties = static_cast<int>(shared_.size());
  const int me = args_.fabric.rank();
  const float scale = (step.raw ? operation_->pre : 1.0F) *
                      (step.final ? operation_->post : 1.0F);
  const DType wire = operation_->call.wire;
  const Slice& src = step.src.count > 0 ? step.src : step.dst;
  const std::size_t tile = kTileBytes / element_bytes();
  std::array<const void*, kernels::kMaxParties> sources;
  std::array<void*, kernels::kMaxParties> dests;
  const std::size_t turn_end = TurnEnd(step);
  while (pulled_ < turn_end && status_.ok()) {
    const std::size_t n = std::min(tile, turn_end - pulled_);
    MemoryOf(step.dst).ForEachRun(
        Position(step.dst) + pulled_, n,
        [&](std::byte* mine, std::size_t run, std::size_t done) {
          for (int i = 0; i < parties; ++i) {
            // In place, a part of this rank's own buffer may not be staged.
            const bool in_place = !schedule_->shown && shared_[i].rank == me;
            std::byte* at =
                in_place ? mine : SeenOf(shared_[i], src, pulled_ + done, run);
            if (at == nullptr) return;
            sources[i] = at;
            dests[i] = at;
          }
          if (!step.push) dests[0] = mine;
          args_.kernels.reduce_many(
              {sources.data(), parties, -1, shown_dtype_, dests.data(),
               step.push ? parties : 1, dtype_, step.final ? wire : dtype_, run,
               operation_->op, scale, nonfinite(step.final), wire,
               step.last ? Unscale() : 1.0F},
              nullptr);
        });
    pulled_ += n;
  }
  if (!status_.ok() || pulled_ < step.dst.count) return false;
  pulled_ = 0;
  CountShared(step.dst.count, parties - 1, step.push ? 2 : 1);
  return true;
}

void Segment::RunPush(const Step& step) {
  data_.ForEachRun(data_begin_ + step.dst.offset, step.dst.count,
                   [&](std::byte* mine, std::size_t run, std::size_t done) {
                     for (const Shared& peer : shared_) {
                       std::byte* at = SeenOf(peer, step.dst, done, run);
                       if (at != mine) {
                         std::memcpy(at, mine, run * element_bytes());
                       }
                     }
                   });
  CountShared(step.dst.count, static_cast<int>(shared_.size()) - 1, 1);
}

// Counts `elements` that were read from or written to `peers` buffers, or both
// (`ways` is 2).
void Segment::CountShared(std::size_t elements, int peers, int ways) {
  BytesSent() +=
      elements * SizeOf(shown_dtype_) * static_cast<std::size_t>(peers * ways);
}

void Segment::AddAwaited(std::vector<int>* ranks) const {
  if (round_ == schedule_->rounds.size()) return;
  if (placed_ != nullptr) AddUnplaced(ranks);
  if (!published_) return;
  for (int rank : args_.arena->members()) {
    const SyncSlot& theirs = args_.arena->slot(rank, SlotOf(sync_));
    if (theirs.arrived.load(std::memory_order_acquire) < sync_) {
      ranks->push_back(rank);
    }
  }
}

}  // namespace gradientflow
