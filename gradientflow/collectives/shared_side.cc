#include "gradientflow/collectives/shared_side.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

// The schedule actions of a segment whose ranks share memory:
//
//   kSync         publishes what this rank shows, then waits until all sharing
//                 ranks have done so: peers_ has what they show
//   kPull         copies a slice of what one rank shows
//   kPullReduce   reads one slice of what each rank shows and sums it, tile by
//                 tile
//   kPush         writes this rank's slice to all buffers
//
// Nothing travels, but everything is rounded as if it had, so that results do
// not depend on the fabric. Stage() decides what is shown. That is the call's
// buffer, or, if peers cannot reach it or are not to see it change, a copy of
// the segment. If peers write to the copy, Finish() copies it back.
namespace gradientflow {
namespace {

// The bytes that one Run() reduces before other segments have their turn.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
// A mailbox is read only in the turn of its own sync, which is what
// CallQueue::HasSlotsFor() relies on.
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

SharedSide::~SharedSide() {
  if (bounce_.data != nullptr) args_.arena->Free(bounce_);
}

void SharedSide::Start(std::uint64_t first_sync) {
  first_sync_ = sync_ = first_sync;
  dtype_ = data_.dtype();
  const Operation& operation = *data_.operation();
  if (operation.plan.one_sided && !data_.schedule().rounds.empty() &&
      operation.group->size > 1) {
    Stage();
  }
}

void SharedSide::Reset() {
  published_ = copied_ = staged_ = false;
  pulled_ = 0;
  peers_.clear();
  shown_ = nullptr;
}

bool SharedSide::Run(const Action& action, int looks) {
  switch (action.kind) {
    case Action::Kind::kSync:
      return Sync(looks);
    case Action::Kind::kPull:
      return Pull(action);
    case Action::Kind::kPullReduce:
      return PullReduce(action);
    default:
      Push(action);
      return true;
  }
}

// Peers reach only memory in the arena. In a mixed group the ranks also agree
// that it has no gaps and the wire dtype. A buffer that is different goes
// through a copy in the arena.
void SharedSide::Stage() {
  const Schedule& schedule = data_.schedule();
  if (schedule.shown) return Show(*schedule.shown);
  const CollectiveCall& call = data_.call();
  const bool mixed = !data_.operation()->plan.same_dtypes;
  const bool as_agreed = !mixed || (!data_.converts() && call.extents.empty());
  shown_ = call.output;
  if (as_agreed && IsInArena(Slice::Space::kData)) return;
  staged_ = copied_ = true;
  if (mixed) data_.MoveTo(nullptr, dtype_ = call.wire);
  shown_ = Bounce(data_.count() * data_.element_bytes());
  if (shown_ == nullptr) return;
  // If the sum is made in another dtype than the buffer's, the rank's own block
  // has to be copied, too.
  kept_ = mixed ? Slice() : schedule.untouched;
  ForEachStaged([&](std::byte* run, std::size_t n, std::byte* staged) {
    args_.kernels.convert(
        {run, call.dtype, staged, dtype_, nullptr, n, 1.0F, nullptr}, nullptr);
  });
  if (kept_.count == 0) data_.MoveTo(bounce_.data, dtype_);
}

// Returns `bytes` of this rank's arena, or null, and then the segment fails.
std::byte* SharedSide::Bounce(std::size_t bytes) {
  bounced_ = true;
  if (bounce_.bytes < bytes) {
    if (bounce_.data != nullptr) args_.arena->Free(bounce_);
    bounce_ = {};
    Result<BufferView> bounce = args_.arena->Allocate(bytes);
    if (!bounce.ok()) {
      data_.Fail(bounce.status());
      return nullptr;
    }
    bounce_ = bounce.value();
  }
  return bounce_.data;
}

void SharedSide::Trim() {
  if (std::exchange(bounced_, false) || bounce_.data == nullptr) return;
  args_.arena->Free(bounce_);
  bounce_ = {};
}

// Whether peers reach the call's buffer.
bool SharedSide::IsInArena(Slice::Space space) const {
  const CollectiveCall& call = data_.call();
  const std::size_t bytes = SizeOf(call.dtype);
  if (call.kind == CollectiveKind::kAllreduce) {
    return args_.arena->Contains(call.output, OutputEnd() * bytes);
  }
  const CallBuffers buffers = BuffersOf(call, *data_.operation()->group);
  return space == Slice::Space::kInput
             ? args_.arena->Contains(call.input, buffers.input * bytes)
             : args_.arena->Contains(call.output, buffers.output * bytes);
}

// Memory for a copy that peers read; null if there is none, and then the
// segment fails.
std::byte* SharedSide::CopyFor(std::size_t bytes) {
  if (!data_.schedule().mailed) return Bounce(bytes);
  assert(bytes <= Mailboxes::kBoxBytes);
  const Result<std::byte*> box =
      args_.mailboxes.At(data_.call().channel, first_sync_);
  if (box.ok()) return box.value();
  data_.Fail(box.status());
  return nullptr;
}

// Shows the slice in place, or a copy of it. In a mixed group the copy has the
// wire dtype, as the ranks have agreed.
void SharedSide::Show(const Slice& slice) {
  const CollectiveCall& call = data_.call();
  if (!data_.operation()->plan.same_dtypes) dtype_ = call.wire;
  if (slice.count == 0) return;
  if (!data_.schedule().mailed && dtype_ == data_.dtype() &&
      IsInArena(slice.space)) {
    shown_ = slice.space == Slice::Space::kInput ? call.input : call.output;
    return;
  }
  const std::size_t bytes = SizeOf(dtype_);
  std::byte* const copy = CopyFor(slice.count * bytes);
  if (copy == nullptr) return;
  shown_ = copy;
  copied_ = true;
  const std::size_t piece =
      data_.IsBlocked(slice.space) ? data_.count() : slice.count;
  for (std::size_t at = 0; at < slice.count; at += piece) {
    data_.MemoryOf(slice).ForEachRun(
        data_.Position({slice.space, at, piece}), piece,
        [&](std::byte* run, std::size_t n, std::size_t offset) {
          args_.kernels.convert({run, call.dtype, copy + (at + offset) * bytes,
                                 dtype_, nullptr, n, 1.0F, nullptr},
                                nullptr);
        });
  }
}

void SharedSide::Finish() {
  if (!staged_) return;
  const Operation& operation = *data_.operation();
  const DType from = data_.dtype();
  const DType to = operation.call.dtype;
  // A result that was staged in the dtype of its buffer has been unscaled in
  // the staging already.
  const float unscale = to != from ? operation.unscale : 1.0F;
  ForEachStaged([&](std::byte* run, std::size_t n, const std::byte* staged) {
    args_.kernels.convert({staged, from, run, to, nullptr, n, unscale,
                           data_.nonfinite(to != from)},
                          nullptr);
  });
}

// Calls function(run, elements, staged) for each contiguous run of the buffer
// that is staged; `staged` is its place in the staging memory.
template <typename F>
void SharedSide::ForEachStaged(F&& function) {
  const std::size_t bytes = data_.element_bytes();
  const auto each = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    data_.operation()->data.ForEachRun(
        data_.begin() + begin, end - begin,
        [&](std::byte* run, std::size_t n, std::size_t offset) {
          function(run, n, bounce_.data + (begin + offset) * bytes);
        });
  };
  each(0, kept_.offset);
  each(kept_.offset + kept_.count, data_.count());
}

// Number of elements from the start of the call's buffer to the end of its last
// extent.
std::size_t SharedSide::OutputEnd() const {
  const CollectiveCall& call = data_.call();
  if (call.extents.empty()) return call.count;
  return call.extents.back().begin + call.extents.back().count;
}

// `arrived` is stored last, with release: a peer that sees it sees the rest.
void SharedSide::Publish(SyncSlot* slot) {
  published_ = true;
  ++moves_;
  slot->offset = shown_ == nullptr ? 0 : args_.arena->OffsetOf(shown_);
  slot->signature = data_.Signature();
  slot->flags = (copied_ ? kCopied : 0) | data_.flags();
  slot->arrived.store(sync_, std::memory_order_release);
  args_.arena->RingSleepers();
}

// Each channel counts its own syncs and has its own slots.
int SharedSide::SlotOf(std::uint64_t sync) const {
  constexpr int kSlots = kSyncSlots / kChannels;
  return static_cast<int>(data_.call().channel) * kSlots +
         static_cast<int>(sync % kSlots);
}

// Peers of a blocking call come almost at the same time. Looking again at once
// finds them earlier than the next turn would.
bool SharedSide::Sync(int looks) {
  const int slot = SlotOf(sync_);
  if (!published_) Publish(&args_.arena->slot(args_.fabric.rank(), slot));
  while (!AllHaveCome(slot)) {
    if (--looks <= 0) return false;
    Relax();
  }
  if (!Collect(slot)) return false;
  published_ = false;
  ++sync_;
  return data_.status().ok();
}

void SharedSide::Retract() {
  const std::uint64_t end = sync_ + (published_ ? 1 : 0);
  for (std::uint64_t sync = first_sync_; sync < end; ++sync) {
    args_.arena->slot(args_.fabric.rank(), SlotOf(sync))
        .arrived.store(0, std::memory_order_seq_cst);
  }
}

bool SharedSide::AllHaveCome(int slot) const {
  const std::vector<int>& members = args_.arena->members();
  return std::all_of(members.begin(), members.end(), [&](int rank) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    return theirs.arrived.load(std::memory_order_acquire) >= sync_;
  });
}

// Finds out what the sharing ranks show: peers_. Returns false and fails the
// segment if a rank came to a different call. REQUIRES AllHaveCome().
bool SharedSide::Collect(int slot) {
  const SyncSlot& mine = args_.arena->slot(args_.fabric.rank(), slot);
  peers_.clear();
  for (int rank : args_.arena->members()) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    if (theirs.signature != mine.signature) {
      data_.Fail(data_.AnotherCall(rank));
      return false;
    }
    data_.AddFlags(theirs.flags);
    Shown& shown = peers_.emplace_back();
    shown.rank = rank;
    shown.copied = (theirs.flags & kCopied) != 0;
    shown.offset = theirs.offset;
    if (!data_.schedule().shown && !Locate(&shown)) return false;
  }
  return true;
}

// Finds the elements of a rank that shows all of its data. Returns false and
// fails the segment if they are not in that rank's memory.
bool SharedSide::Locate(Shown* shown) {
  const bool mixed = !data_.operation()->plan.same_dtypes;
  const std::size_t end = mixed ? data_.call().count : OutputEnd();
  const std::size_t bytes = data_.element_bytes();
  std::byte* const base =
      args_.arena->At(shown->rank, shown->offset,
                      (shown->copied ? data_.count() : end) * bytes);
  if (base == nullptr) {
    data_.Fail(Status(StatusCode::kDataLoss,
                      StrCat("rank ", shown->rank, " published offset ",
                             shown->offset, ", outside its memory")));
    return false;
  }
  shown->data = shown->copied || mixed ? Elements(base, bytes)
                                       : data_.operation()->data.At(base);
  return true;
}

// Returns where elements [skip, skip + count) of `slice` are in what `peer`
// shows. If they are outside its memory, returns null and fails the segment.
std::byte* SharedSide::SeenOf(const Shown& peer, const Slice& slice,
                              std::size_t skip, std::size_t count) {
  const std::size_t begin =
      skip + (peer.copied ? slice.offset : data_.PositionInCall(slice));
  if (!data_.schedule().shown) return peer.data.Contiguous(begin, count);
  const std::size_t bytes = SizeOf(dtype_);
  std::byte* at =
      args_.arena->At(peer.rank, peer.offset + begin * bytes, count * bytes);
  if (at == nullptr) {
    data_.Fail(
        Status(StatusCode::kDataLoss,
               StrCat("rank ", peer.rank, " shows offset ", peer.offset, ": ",
                      count, " elements of ", bytes, " bytes from number ",
                      begin, " on are outside its memory")));
  }
  return at;
}

// The elements of the action that are done when this turn of it ends.
std::size_t SharedSide::TurnEnd(const Action& action) const {
  return std::min(action.dst.count,
                  pulled_ + kTurnBytes / data_.element_bytes());
}

// A turn of the action has come to element `end`. Returns whether the action is
// over.
bool SharedSide::TurnIsOver(const Action& action, std::size_t end) {
  if (end != pulled_) ++moves_;
  pulled_ = end;
  if (!data_.status().ok() || pulled_ < action.dst.count) return false;
  pulled_ = 0;
  return true;
}

bool SharedSide::Pull(const Action& action) {
  const auto peer =
      std::find_if(peers_.begin(), peers_.end(), [&](const Shown& shown) {
        return shown.rank == data_.operation()->group->FabricRank(action.peer);
      });
  const std::size_t end = TurnEnd(action);
  data_.MemoryOf(action.dst)
      .ForEachRun(data_.Position(action.dst) + pulled_, end - pulled_,
                  [&](std::byte* mine, std::size_t run, std::size_t done) {
                    const std::byte* theirs =
                        SeenOf(*peer, action.src, pulled_ + done, run);
                    if (theirs == nullptr) return;
                    std::memcpy(mine, theirs, run * data_.element_bytes());
                  });
  if (!TurnIsOver(action, end)) return false;
  Count(action.dst.count, 1, 1);
  return true;
}

// The kernel reads a few elements from all ranks and writes them to all ranks
// before it goes on, so that every byte is read once and written once.
bool SharedSide::PullReduce(const Action& action) {
  const Operation& operation = *data_.operation();
  const auto parties = static_cast<int>(peers_.size());
  const int me = args_.fabric.rank();
  const float scale = (action.raw ? operation.pre : 1.0F) *
                      (action.final ? operation.post : 1.0F);
  const DType dtype = data_.dtype();
  const DType wire = operation.call.wire;
  const Slice& src = action.src.count > 0 ? action.src : action.dst;
  std::array<const void*, kernels::kMaxParties> sources;
  std::array<void*, kernels::kMaxParties> dests;
  const std::size_t end = TurnEnd(action);
  data_.MemoryOf(action.dst)
      .ForEachRun(
          data_.Position(action.dst) + pulled_, end - pulled_,
          [&](std::byte* mine, std::size_t run, std::size_t done) {
            for (int i = 0; i < parties; ++i) {
              // In place, a part of this rank's own buffer may not be
              // staged.
              const bool in_place =
                  !data_.schedule().shown && peers_[i].rank == me;
              std::byte* seen =
                  in_place ? mine : SeenOf(peers_[i], src, pulled_ + done, run);
              if (seen == nullptr) return;
              sources[i] = seen;
              dests[i] = seen;
            }
            if (!action.push) dests[0] = mine;
            args_.kernels.reduce_many(
                {sources.data(), parties, -1, dtype_, dests.data(),
                 action.push ? parties : 1, dtype, action.final ? wire : dtype,
                 run, operation.op, scale, data_.nonfinite(action.final), wire,
                 action.last ? data_.Unscale() : 1.0F},
                nullptr);
          });
  if (!TurnIsOver(action, end)) return false;
  Count(action.dst.count, peers_.size() - 1, action.push ? 2 : 1);
  return true;
}

void SharedSide::Push(const Action& action) {
  data_.MemoryOf(action.dst)
      .ForEachRun(data_.Position(action.dst), action.dst.count,
                  [&](std::byte* mine, std::size_t run, std::size_t done) {
                    for (const Shown& peer : peers_) {
                      std::byte* at = SeenOf(peer, action.dst, done, run);
                      if (at != mine)
                        std::memcpy(at, mine, run * data_.element_bytes());
                    }
                  });
  Count(action.dst.count, peers_.size() - 1, 1);
}

// Counts `elements` that were read from or written to `peers` buffers, or both
// (`ways` is 2).
void SharedSide::Count(std::size_t elements, std::size_t peers,
                       std::size_t ways) {
  data_.BytesSent() += elements * SizeOf(dtype_) * peers * ways;
}

void SharedSide::AddAwaited(std::vector<int>* ranks) const {
  if (!published_) return;
  for (int rank : args_.arena->members()) {
    const SyncSlot& theirs = args_.arena->slot(rank, SlotOf(sync_));
    if (theirs.arrived.load(std::memory_order_acquire) < sync_) {
      ranks->push_back(rank);
    }
  }
}

}  // namespace gradientflow
