#include "gradientflow/csc/sparse_device.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

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
namespace {

// CscMemory::Send() has ordered the wire after the pack of the bucket.
Status WireIsOrdered(void*, std::uint64_t, Stream&) { return Status(); }

}  // namespace

DeviceSparse::~DeviceSparse() {
  (void)memory().Synchronize();
  (void)after().Synchronize();
}

Status DeviceSparse::Allocate() {
  GF_RETURN_IF_ERROR(SparseAggregator::Allocate());
  return MakeRing();
}

// The first step sends all chunks, so none has larger buckets.
Status DeviceSparse::MakeRing() {
  const std::vector<std::uint8_t> all(selector_.chunks(), 1);
  const std::vector<Bucket> buckets =
      PlanSparse({args_.layout->elements(), width(), all}, bucket_bytes_,
                 SizeOf(args_.wire_dtype));
  const std::size_t usual =
      selector_.CountAt(std::numeric_limits<std::uint64_t>::max()) * width();
  const std::size_t elements = PackedRing::Capacity(buckets, width(), usual);
  packed_.reset();
  Result<DeviceMemory> made =
      memory().AllocateForWire(elements * SizeOf(args_.wire_dtype));
  if (!made.ok()) return made.status();
  packed_ = std::move(made).value();
  packed_elements_ = elements;
  region_.packed = packed_.get();
  return Status();
}

// Only a larger theta needs a larger ring. No step is under way then.
Status DeviceSparse::BeginBuckets() {
  if (!ring_.Place(buckets_, width(), packed_elements_)) {
    GF_RETURN_IF_ERROR(MakeRing());
    (void)ring_.Place(buckets_, width(), packed_elements_);
  }
  slots_before_.assign(1, 0);
  for (const Bucket& bucket : buckets_) {
    const std::size_t chunks = kernels::ChunkCount(bucket.elements, width());
    slots_before_.push_back(slots_before_.back() +
                            static_cast<std::uint32_t>(chunks));
  }
  back_.assign(buckets_.size(), 0);
  chunks_packed_ = unpacked_ = 0;
  norms_submitted_ = false;
  return Status();
}

// The chunk after the last one of the bucket.
std::size_t DeviceSparse::EndOf(std::size_t bucket) const {
  return kernels::ChunkCount(buckets_[bucket].pool_end, width());
}

// The pool as the passes over a bucket see it.
CscRegion DeviceSparse::Region(std::size_t bucket, CscMemory& memory) const {
  CscRegion region = region_;
  region.memory = &memory;
  region.packed =
      packed_.get() + ring_.begin(bucket) * SizeOf(args_.wire_dtype);
  region.first_slot = slots_before_[bucket];
  return region;
}

// What is to be submitted next.
SparseAggregator::Piece DeviceSparse::NextOfBuckets() const {
  if (phase_ == Phase::kNorms) {
    return norms_submitted_ ? PieceOf(&DeviceSparse::Select) : nullptr;
  }
  // The wire would wait for this pack before the call that was given to NCCL,
  // which NCCL may not have submitted yet.
  if (ahead() && unpacked_ < launched_) return nullptr;
  const bool all_packed = launched_ == buckets_.size();
  if (!all_packed && buckets_[launched_].pool_end <= written_end_ &&
      ring_.needs_back(launched_) <= unpacked_) {
    return PieceOf(&DeviceSparse::PackBucket);
  }
  if (unpacked_ < buckets_.size() && back_[unpacked_] != 0) {
    return PieceOf(&DeviceSparse::UnpackBucket);
  }
  if (!all_packed || !all_written()) return nullptr;
  if (chunks_packed_ < selector_.chunks()) {
    return PieceOf(&DeviceSparse::PackRest);
  }
  return unpacked_ == buckets_.size() ? PieceOf(&DeviceSparse::ExchangeNorms)
                                      : nullptr;
}

// Also packs the chunks that are kept back before those of the bucket, and, if
// they are written, those after the last bucket. Where the device refuses to
// order two streams, what would have to wait is not submitted.
void DeviceSparse::PackBucket() {
  const std::size_t bucket = launched_;
  const bool last = bucket + 1 == buckets_.size() && all_written();
  const std::size_t end = last ? selector_.chunks() : EndOf(bucket);
  Check(memory().AwaitWritten(last ? args_.layout->elements()
                                   : buckets_[bucket].pool_end));
  if (ring_.needs_back(bucket) > 0) Check(memory().Follow(after()));
  if (!result_.status.ok()) return;
  Check(csc_.Pack(Region(bucket, memory()), chunks_packed_,
                  end - chunks_packed_));
  chunks_packed_ = end;
  Check(memory().Send());
  if (result_.status.ok()) StartBucket();
}

void DeviceSparse::PackRest() {
  Check(memory().AwaitWritten(args_.layout->elements()));
  if (!result_.status.ok()) return;
  const std::size_t first = std::exchange(chunks_packed_, selector_.chunks());
  Check(csc_.Pack(region_, first, chunks_packed_ - first));
}

void DeviceSparse::UnpackBucket() {
  const std::size_t bucket = unpacked_++;
  const std::size_t first = buckets_[bucket].extents.front().begin / width();
  Check(csc_.Unpack(Region(bucket, after()), first, EndOf(bucket) - first));
}

void DeviceSparse::Adapt(std::size_t bucket, CollectiveCall* call) {
  call->output = Region(bucket, memory()).packed;
  call->dtype = args_.wire_dtype;
  call->keep_scaled = args_.pool_dtype != DType::kFloat32;
  call->extents.clear();
  if (!ahead()) return;
  call->before.run = &WireIsOrdered;
  call->submitted = {&DeviceSparse::OnBucketAhead, this, bucket};
}

void DeviceSparse::BucketIsBack(std::size_t bucket, bool nonfinite) {
  back_[bucket] = 1;
  if (nonfinite) result_.nonfinite = true;
}

// The wire may be given the next bucket right after this, so the order is set
// here, and only for this bucket. Buckets come in order.
void DeviceSparse::OnBucketAhead(void* self, std::uint64_t, std::uint32_t,
                                 const Status&) {
  auto& sparse = *static_cast<DeviceSparse*>(self);
  sparse.NoteExchange(sparse.buckets_[sparse.unpacked_].pool_end);
  sparse.Check(sparse.after().Receive());
  if (sparse.result_.status.ok()) sparse.UnpackBucket();
}

void DeviceSparse::ExchangeNorms() {
  Check(memory().Send());
  Check(after().Send());
  if (result_.status.ok()) StartNorms();
}

gradientflow::Done DeviceSparse::NormsSubmitted() {
  if (!ahead()) return {};
  return {&DeviceSparse::OnNormsAhead, this, 0};
}

void DeviceSparse::OnNormsAhead(void* self, std::uint64_t, std::uint32_t,
                                const Status&) {
  auto& sparse = *static_cast<DeviceSparse*>(self);
  sparse.NoteExchange(sparse.args_.layout->elements());
  sparse.norms_submitted_ = true;
}

void DeviceSparse::NoteExchange(std::size_t written_end) {
  if (args_.wire_times != nullptr) Check(args_.wire_times->Ended(written_end));
}

// For a bucket that was submitted ahead, the host knows no earlier time at
// which it ended.
void DeviceSparse::StepIsOver() {
  if (!ahead()) return;
  args_.collective->Passed(Channel::kGradients);
  for (std::size_t id = 0; id < buckets_.size(); ++id) RecordBucket(id);
}

}  // namespace gradientflow
