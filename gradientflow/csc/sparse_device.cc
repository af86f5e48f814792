#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "gradientflow/buckets/step_end.h"
#include "gradientflow/csc/sparse.h"

// A step on a device: what is submitted, on which stream, and after what.
//
//   before  pack b ──┬─ pack b + 1 ───┐        the rest ─┐
//   wire             └─ allreduce b ──┼─ allreduce b + 1 ├─ norms ─┐
//   after                             └─ unpack b ── … ──┘         └─ top-k
//
// Each arrow is an event that a stream waits for. If the collective takes calls
// ahead, all of this is submitted while the device is still at work; otherwise
// the host waits for each result of the wire, and the three are one stream.
namespace gradientflow {

// The first step sends all chunks, so none has larger buckets.
Status SparseAggregator::MakeRing() {
  const std::size_t chunk_elements = selector_.chunk(0).count;
  const std::vector<std::uint8_t> all(selector_.chunks(), 1);
  const std::vector<Bucket> buckets =
      PlanSparse({args_.layout->elements(), chunk_elements, all}, bucket_bytes_,
                 SizeOf(args_.wire_dtype));
  const std::size_t usual =
      selector_.CountAt(std::numeric_limits<std::uint64_t>::max()) *
      chunk_elements;
  const std::size_t elements =
      PackedRing::Capacity(buckets, chunk_elements, usual);
  packed_.reset();
  Result<DeviceMemory> memory =
      memory_->AllocateForWire(elements * SizeOf(args_.wire_dtype));
  if (!memory.ok()) return memory.status();
  packed_ = std::move(memory).value();
  packed_elements_ = elements;
  region_.packed = packed_.get();
  return Status();
}

// Only a larger theta needs a larger ring. No step is under way then.
Status SparseAggregator::PlaceBuckets() {
  const std::size_t chunk_elements = selector_.chunk(0).count;
  if (!ring_.Place(buckets_, chunk_elements, packed_elements_)) {
    GF_RETURN_IF_ERROR(MakeRing());
    (void)ring_.Place(buckets_, chunk_elements, packed_elements_);
  }
  slots_before_.assign(1, 0);
  for (const Bucket& bucket : buckets_) {
    const std::size_t chunks =
        kernels::ChunkCount(bucket.elements, chunk_elements);
    slots_before_.push_back(slots_before_.back() +
                            static_cast<std::uint32_t>(chunks));
  }
  back_.assign(buckets_.size(), 0);
  chunks_packed_ = unpacked_ = 0;
  norms_submitted_ = false;
  return Status();
}

// The chunk after the last one of the bucket.
std::size_t SparseAggregator::EndOf(std::size_t bucket) const {
  return kernels::ChunkCount(buckets_[bucket].pool_end,
                             selector_.chunk(0).count);
}

// The pool as the passes over a bucket see it.
CscRegion SparseAggregator::Region(std::size_t bucket,
                                   CscMemory& memory) const {
  CscRegion region = region_;
  region.memory = &memory;
  region.packed =
      packed_.get() + ring_.begin(bucket) * SizeOf(args_.wire_dtype);
  region.first_slot = slots_before_[bucket];
  return region;
}

// What is to be submitted next.
SparseAggregator::Piece SparseAggregator::NextSubmission() const {
  using Self = SparseAggregator;
  if (phase_ == Phase::kNorms) {
    return norms_submitted_ ? &Self::Select : nullptr;
  }
  // The wire would wait for this pack before the call that was given to NCCL,
  // which NCCL may not have submitted yet.
  if (ahead() && unpacked_ < launched_) return nullptr;
  if (launched_ < buckets_.size() &&
      buckets_[launched_].pool_end <= written_end_ &&
      ring_.needs_back(launched_) <= unpacked_) {
    return &Self::PackBucket;
  }
  if (unpacked_ < buckets_.size() && back_[unpacked_] != 0) {
    return &Self::UnpackBucket;
  }
  if (launched_ < buckets_.size() || written_end_ < args_.layout->elements()) {
    return nullptr;
  }
  if (chunks_packed_ < selector_.chunks()) return &Self::PackRest;
  return unpacked_ == buckets_.size() ? &Self::StartNorms : nullptr;
}

// Also packs the chunks that are kept back before those of the bucket, and, if
// they are written, those after the last bucket.
void SparseAggregator::PackBucket() {
  const std::size_t bucket = launched_++;
  const bool last =
      bucket + 1 == buckets_.size() && written_end_ == args_.layout->elements();
  const std::size_t end = last ? selector_.chunks() : EndOf(bucket);
  Check(args_.sync->AwaitWritten(last ? args_.layout->elements()
                                      : buckets_[bucket].pool_end));
  if (ring_.needs_back(bucket) > 0) Check(memory_->Follow(after()));
  Check(csc_.Pack(Region(bucket, *memory_), chunks_packed_,
                  end - chunks_packed_));
  chunks_packed_ = end;
  Check(memory_->Send());
  StartBucket(bucket);
}

void SparseAggregator::PackRest() {
  Check(args_.sync->AwaitWritten(args_.layout->elements()));
  const std::size_t first = std::exchange(chunks_packed_, selector_.chunks());
  Check(csc_.Pack(region_, first, chunks_packed_ - first));
}

void SparseAggregator::UnpackBucket() {
  const std::size_t bucket = unpacked_++;
  const std::size_t chunk_elements = selector_.chunk(0).count;
  const std::size_t first =
      buckets_[bucket].extents.front().begin / chunk_elements;
  Check(csc_.Unpack(Region(bucket, after()), first, EndOf(bucket) - first));
}

// The wire may be given the next bucket right after this, so the order is set
// here, and only for this bucket. Buckets come in order.
void SparseAggregator::OnBucketAhead(void* self, std::uint64_t, std::uint32_t,
                                     const Status&) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.NoteExchange(sparse.buckets_[sparse.unpacked_].pool_end);
  sparse.Check(sparse.after().Receive());
  sparse.UnpackBucket();
}

void SparseAggregator::OnNormsAhead(void* self, std::uint64_t, std::uint32_t,
                                    const Status&) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.NoteExchange(sparse.args_.layout->elements());
  sparse.norms_submitted_ = true;
}

void SparseAggregator::NoteExchange(std::size_t written_end) {
  if (args_.wire_times != nullptr) Check(args_.wire_times->Ended(written_end));
}

// The step is over, and so are its calls. The host knows no better when a
// bucket ended.
void SparseAggregator::NoteBucketsPassed() {
  args_.collective->Passed(Channel::kGradients);
  for (std::size_t id = 0; id < buckets_.size(); ++id) RecordBucket(id);
}

bool SparseAggregator::MayLook() {
  if (on_host()) return true;
  const Clock::Time now = args_.clock->Now();
  if (now - looked_at_ < kLookInterval) return false;
  looked_at_ = now;
  return true;
}

}  // namespace gradientflow
