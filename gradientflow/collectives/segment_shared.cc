#include <algorithm>
#include <array>
#include <cstring>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/segment.h"

// The schedule steps of a segment whose ranks share memory:
//
//   kSync         publishes where this rank's buffer is, then waits until all
//                 sharing ranks have done so: shared_ has their buffers
//   kPullReduce   reads one slice of all buffers and sums it, tile by tile
//   kPush         writes this rank's slice to all buffers
//
// Nothing travels, but everything is rounded as if it had, so that results do
// not depend on the fabric. If peers cannot reach this rank's buffer, Stage()
// copies the segment to memory that they can reach, and Unstage() copies it
// back.
namespace gradientflow {
namespace {

// A tile is read from all ranks and written to all ranks while it is in the L2
// cache.
constexpr std::size_t kTileBytes = std::size_t{32} << 10;
// The bytes that one Advance() reduces before other segments have their turn.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
// In SyncSlot::flags: the published memory holds just the segment, without
// gaps.
constexpr std::uint32_t kStaged = 1U << 8;

}  // namespace

// Peers reach only memory in the arena. In a mixed group the ranks also agree
// that it has no gaps and the wire dtype. A buffer that is different goes
// through a copy in the arena.
void Segment::Stage() {
  const CollectiveCall& call = operation_->call;
  const bool mixed = !operation_->plan.same_dtypes;
  const bool as_agreed = !mixed || (!converts() && call.extents.empty());
  if (as_agreed &&
      args_.arena->Contains(call.output, OutputEnd() * element_bytes())) {
    return;
  }
  staged_ = true;
  if (mixed) dtype_ = call.wire;
  const std::size_t bytes = count_ * element_bytes();
  if (bounce_.bytes < bytes) {
    if (bounce_.data != nullptr) args_.arena->Free(bounce_);
    bounce_ = {};
    Result<BufferView> bounce = args_.arena->Allocate(bytes);
    if (!bounce.ok()) {
      status_ = bounce.status();
      return;
    }
    bounce_ = bounce.value();
  }
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
  const void* base = staged_ ? bounce_.data : operation_->call.output;
  slot->offset = args_.arena->OffsetOf(base);
  slot->signature =
      MixHash(MixHash(operation_->signature, operation_->sequence), index_);
  slot->flags = (staged_ ? kStaged : 0) |
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

bool Segment::RunSync() {
  const int slot = SlotOf(sync_);
  if (!published_) {
    published_ = true;
    Publish(&args_.arena->slot(args_.fabric.rank(), slot));
  }
  if (!Collect(sync_, slot)) return false;
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

// Returns whether every sharing rank has come to sync `value`. If so, shared_
// says where their buffers are. A rank that came to a different call fails the
// segment.
bool Segment::Collect(std::uint64_t value, int slot) {
  const std::vector<int>& members = args_.arena->members();
  for (int rank : members) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    if (theirs.arrived.load(std::memory_order_acquire) < value) return false;
  }
  const SyncSlot& mine = args_.arena->slot(args_.fabric.rank(), slot);
  const CollectiveCall& call = operation_->call;
  const bool mixed = !operation_->plan.same_dtypes;
  const std::size_t end = mixed ? call.count : OutputEnd();
  shared_.clear();
  for (int rank : members) {
    const SyncSlot& theirs = args_.arena->slot(rank, slot);
    if (theirs.signature != mine.signature) {
      status_ = Status(StatusCode::kInvalidArgument,
                       StrCat("rank ", rank, " came to another call than rank ",
                              args_.fabric.rank(), ": ", Name(call.kind), " ",
                              operation_->sequence, " of ", call.count, " ",
                              Name(call.dtype), ", step ", call.step,
                              " bucket ", call.bucket,
                              "; kind, dtype, operation, count, step or place "
                              "in the pool differ"));
      return false;
    }
    flags_ |= theirs.flags & kFlagNonfinite;
    const bool staged = (theirs.flags & kStaged) != 0;
    std::byte* base = args_.arena->At(
        rank, theirs.offset, (staged ? count_ : end) * element_bytes());
    if (base == nullptr) {
      status_ = Status(StatusCode::kDataLoss,
                       StrCat("rank ", rank, " published offset ",
                              theirs.offset, ", outside its memory"));
      return false;
    }
    Shared shared;
    shared.rank = rank;
    shared.data = staged || mixed ? Elements(base, element_bytes())
                                  : operation_->data.At(base);
    shared.begin = staged ? 0 : begin_;
    shared_.push_back(shared);
  }
  return true;
}

bool Segment::RunPullReduce(const Step& step) {
  const auto parties = static_cast<int>(shared_.size());
  const int me = args_.fabric.rank();
  const float scale = (step.raw ? operation_->pre : 1.0F) *
                      (step.final ? operation_->post : 1.0F);
  const DType wire = operation_->call.wire;
  const std::size_t tile = kTileBytes / element_bytes();
  std::array<const void*, kernels::kMaxParties> sources;
  std::array<void*, kernels::kMaxParties> dests;
  const std::size_t turn_end =
      std::min(step.dst.count, pulled_ + kTurnBytes / element_bytes());
  while (pulled_ < turn_end) {
    const std::size_t offset = step.dst.offset + pulled_;
    std::size_t n = std::min(tile, turn_end - pulled_);
    data_.ForEachRun(
        data_begin_ + offset, n,
        [&](std::byte* mine, std::size_t run, std::size_t done) {
          for (int i = 0; i < parties; ++i) {
            std::byte* at = mine;
            if (shared_[i].rank != me) {
              at = shared_[i].data.Contiguous(shared_[i].begin + offset + done,
                                              run);
            }
            sources[i] = at;
            dests[i] = at;
          }
          if (!step.push) dests[0] = mine;
          args_.kernels.reduce_many(
              {sources.data(), parties, -1, dtype_, dests.data(),
               step.push ? parties : 1, dtype_, step.final ? wire : dtype_, run,
               operation_->op, scale, nonfinite(step.final), wire,
               step.last ? Unscale() : 1.0F},
              nullptr);
        });
    pulled_ += n;
  }
  if (pulled_ < step.dst.count) return false;
  pulled_ = 0;
  CountShared(step.dst.count, parties - 1, step.push ? 2 : 1);
  return true;
}

void Segment::RunPush(const Step& step) {
  data_.ForEachRun(data_begin_ + step.dst.offset, step.dst.count,
                   [&](std::byte* mine, std::size_t run, std::size_t done) {
                     for (const Shared& peer : shared_) {
                       std::byte* at = peer.data.Contiguous(
                           peer.begin + step.dst.offset + done, run);
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
      elements * element_bytes() * static_cast<std::size_t>(peers * ways);
}

void Segment::AddAwaited(std::vector<int>* ranks) const {
  if (!published_) return;
  for (int rank : args_.arena->members()) {
    const SyncSlot& theirs = args_.arena->slot(rank, SlotOf(sync_));
    if (theirs.arrived.load(std::memory_order_acquire) < sync_) {
      ranks->push_back(rank);
    }
  }
}

}  // namespace gradientflow
