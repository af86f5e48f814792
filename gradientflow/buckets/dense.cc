#include "gradientflow/buckets/dense.h"

#include "gradientflow/collectives/call_plan.h"
#include "transports/wire.h"

namespace gradientflow {

// A bucket in one piece is passed as a plain buffer, others as extents of the
// pool. `place` makes sure that the ranks mean the same elements either way.
CollectiveCall BucketCall(const AggregatorParts& parts, const Bucket& bucket,
                          float loss_scale, std::uint64_t step,
                          std::uint64_t id) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.count = bucket.elements;
  call.dtype = parts.pool_dtype;
  call.wire = parts.wire_dtype;
  call.op = parts.reduce;
  call.unscale = 1.0F / loss_scale;
  call.channel = Channel::kGradients;
  call.group = parts.group;
  call.step = step;
  call.bucket = id;
  call.output = parts.pool;
  call.place = HashOf(bucket.extents);
  if (bucket.extents.size() == 1) {
    call.output =
        parts.pool + bucket.extents[0].begin * SizeOf(parts.pool_dtype);
  } else {
    call.extents = bucket.extents;
  }
  return call;
}

float ScaleInPool(const AggregatorParts& parts, float loss_scale) {
  return parts.pool_dtype == DType::kFloat32 ? 1.0F : loss_scale;
}

Span BucketSpan(const AggregatorParts& parts, const Bucket& bucket,
                std::uint64_t step, std::uint64_t id, Clock::Time begin) {
  return {"bucket",
          "",
          step,
          id,
          bucket.elements * SizeOf(parts.wire_dtype),
          begin,
          parts.clock->Now()};
}

DenseAggregator::DenseAggregator(const AggregatorParts& parts)
    : parts_(parts), bucket_bytes_(parts.bucket_bytes) {
  SetBucketBytes(bucket_bytes_);
  if (parts.layout->elements() > 0) {
    exchanged_.push_back({0, parts.layout->elements()});
  }
}

void DenseAggregator::SetBucketBytes(std::size_t bytes) {
  bucket_bytes_ = bytes;
  buckets_.clear();  // The next Begin() makes them anew.
}

void DenseAggregator::Begin(std::uint64_t step, float loss_scale) {
  if (buckets_.empty()) {
    buckets_ =
        PlanDense(*parts_.layout, bucket_bytes_, SizeOf(parts_.wire_dtype));
  }
  step_ = step;
  loss_scale_ = loss_scale;
  launched_ = done_ = 0;
  launched_at_.clear();
  result_ = AggregateResult();
  result_.gradient_scale = ScaleInPool(parts_, loss_scale);
  result_.buckets = buckets_.size();
}

// Starts, in order, every bucket whose part of the pool is written.
void DenseAggregator::Advance(std::size_t written_end) {
  while (launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= written_end) {
    const std::size_t id = launched_++;
    launched_at_.push_back(parts_.clock->Now());
    parts_.collective->Start(
        BucketCall(parts_, buckets_[id], loss_scale_, step_, id),
        {&DenseAggregator::OnDone, this, id});
  }
}

void DenseAggregator::OnDone(void* self, std::uint64_t bucket,
                             std::uint32_t flags, const Status& status) {
  auto& dense = *static_cast<DenseAggregator*>(self);
  ++dense.done_;
  dense.parts_.recorder->Record(BucketSpan(dense.parts_, dense.buckets_[bucket],
                                           dense.step_, bucket,
                                           dense.launched_at_[bucket]));
  if ((flags & kFlagNonfinite) != 0) dense.result_.nonfinite = true;
  if (!status.ok() && dense.result_.status.ok()) {
    dense.result_.status = status;
  }
}

bool DenseAggregator::Done() const { return done_ == buckets_.size(); }

Status DenseAggregator::CheckState(
    std::uint64_t, std::span<const std::byte> residual,
    std::span<const std::byte> next_selection) const {
  if (!residual.empty() || !next_selection.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the state holds a residual or a selection, but this "
                  "session sends densely (sparsity 0)");
  }
  return Status();
}

}  // namespace gradientflow
