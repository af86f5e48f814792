#include "gradientflow/buckets/dense.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "gradientflow/collectives/call_plan.h"
#include "transports/wire.h"

namespace gradientflow {

// A bucket in one piece is passed as a plain buffer, others as extents of the
// pool. `place` makes sure that the ranks mean the same elements either way.
CollectiveCall BucketCall(const AggregatorArgs& args, const Bucket& bucket,
                          float loss_scale, std::uint64_t step,
                          std::uint64_t id) {
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.count = bucket.elements;
  call.dtype = args.pool_dtype;
  call.wire = args.wire_dtype;
  call.op = args.reduce;
  call.unscale = 1.0F / loss_scale;
  call.channel = Channel::kGradients;
  call.group = args.group;
  call.step = step;
  call.bucket = id;
  call.output = args.pool;
  call.place = HashOf(bucket.extents);
  if (bucket.extents.size() == 1) {
    call.output = args.pool + bucket.extents[0].begin * SizeOf(args.pool_dtype);
  } else {
    call.extents = bucket.extents;
  }
  return call;
}

float ScaleInPool(const AggregatorArgs& args, float loss_scale) {
  return args.pool_dtype == DType::kFloat32 ? 1.0F : loss_scale;
}

Span BucketSpan(const AggregatorArgs& args, const Bucket& bucket,
                std::uint64_t step, std::uint64_t id, Clock::Time begin) {
  return {"bucket",
          "",
          step,
          id,
          bucket.elements * SizeOf(args.wire_dtype),
          begin,
          args.clock->Now()};
}

DenseAggregator::DenseAggregator(const AggregatorArgs& args)
    : args_(args), bucket_bytes_(args.bucket_bytes) {
  SetBucketBytes(bucket_bytes_);
  if (args.layout->elements() > 0) {
    exchanged_.push_back({0, args.layout->elements()});
  }
}

void DenseAggregator::SetBucketBytes(std::size_t bytes) {
  bucket_bytes_ = bytes;
  buckets_.clear();  // The next Begin() makes them anew.
}

void DenseAggregator::Begin(std::uint64_t step, float loss_scale) {
  if (buckets_.empty()) {
    buckets_ =
        PlanDense(*args_.layout, bucket_bytes_, SizeOf(args_.wire_dtype));
  }
  step_ = step;
  loss_scale_ = loss_scale;
  launched_ = done_ = submitted_ = 0;
  end_submitted_ = false;
  launched_at_.clear();
  result_ = AggregateResult();
  if (args_.end != nullptr) Check(args_.end->Begin());
  if (args_.wire_times != nullptr) {
    Check(args_.wire_times->Begin(buckets_.size()));
  }
  result_.gradient_scale = ScaleInPool(args_, loss_scale);
  result_.buckets = buckets_.size();
}

// Starts, in order, every bucket whose part of the pool is written.
void DenseAggregator::Advance(std::size_t written_end) {
  while (launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= written_end) {
    const std::size_t id = launched_++;
    launched_at_.push_back(args_.clock->Now());
    CollectiveCall call =
        BucketCall(args_, buckets_[id], loss_scale_, step_, id);
    if (args_.sync != nullptr) {
      call.before = {&DenseAggregator::AwaitBucket, this, id};
    }
    gradientflow::Done done = {&DenseAggregator::OnDone, this, id};
    if (args_.end != nullptr) {
      call.submitted = {&DenseAggregator::OnSubmitted, this, id};
      call.nonfinite = args_.end->nonfinite();
      done = {&DenseAggregator::OnAheadEnded, this, id};
    }
    args_.collective->Start(call, done);
  }
}

bool DenseAggregator::HasWork() const {
  return args_.end != nullptr && !Done() && submitted_ == buckets_.size();
}

// Only for steps that are submitted ahead: submits the end of the step, and
// later asks the device for it.
bool DenseAggregator::Work() {
  if (!HasWork()) return false;
  if (!end_submitted_) {
    Check(args_.collective->Join(Channel::kGradients));
    Check(args_.end->Submit());
    end_submitted_ = true;
    return true;
  }
  const Result<bool> reached = args_.end->Reached(args_.clock->Now());
  Check(reached.status());
  if (!reached.ok() || !reached.value()) return !reached.ok();
  TakeEnd();
  return true;
}

void DenseAggregator::TakeEnd() {
  args_.collective->Passed(Channel::kGradients);
  result_.nonfinite = args_.end->found_nonfinite();
  for (std::size_t id = 0; id < buckets_.size(); ++id) {
    args_.recorder->Record(
        BucketSpan(args_, buckets_[id], step_, id, launched_at_[id]));
  }
  done_ = buckets_.size();
}

void DenseAggregator::Check(const Status& status) {
  if (result_.status.ok()) result_.status = status;
}

Status DenseAggregator::AwaitBucket(void* self, std::uint64_t bucket,
                                    Stream& stream) {
  const auto& dense = *static_cast<DenseAggregator*>(self);
  return dense.args_.sync->AwaitWritten(dense.buckets_[bucket].pool_end,
                                        stream);
}

void DenseAggregator::OnSubmitted(void* self, std::uint64_t bucket,
                                  std::uint32_t, const Status&) {
  auto& dense = *static_cast<DenseAggregator*>(self);
  ++dense.submitted_;
  if (dense.args_.wire_times == nullptr) return;
  dense.Check(dense.args_.wire_times->Ended(dense.buckets_[bucket].pool_end));
}

// Reports only the failure of a call that was submitted ahead.
void DenseAggregator::OnAheadEnded(void* self, std::uint64_t, std::uint32_t,
                                   const Status& status) {
  static_cast<DenseAggregator*>(self)->Check(status);
}

void DenseAggregator::OnDone(void* self, std::uint64_t bucket,
                             std::uint32_t flags, const Status& status) {
  auto& dense = *static_cast<DenseAggregator*>(self);
  ++dense.done_;
  dense.args_.recorder->Record(BucketSpan(dense.args_, dense.buckets_[bucket],
                                          dense.step_, bucket,
                                          dense.launched_at_[bucket]));
  if ((flags & kFlagNonfinite) != 0) dense.result_.nonfinite = true;
  if (!status.ok() && dense.result_.status.ok()) {
    dense.result_.status = status;
  }
}

Status DenseAggregator::ZeroSent() {
  const std::size_t elements = args_.layout->elements();
  return args_.zero({args_.pool, elements * SizeOf(args_.pool_dtype), {}});
}

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
