#include "gradientflow/csc/device_sparse.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// The step: packing, sending, unpacking. The selection, and the memory of both,
// are in device_selection.cc.
namespace gradientflow {

DeviceSparseAggregator::DeviceSparseAggregator(const AggregatorParts& parts,
                                               const DeviceSparseConfig& config,
                                               ChunkSelector selector)
    : parts_(parts),
      config_(config),
      kernels_(config.device->chunk_kernels()),
      selector_(std::move(selector)),
      bucket_bytes_(parts.bucket_bytes) {}

void DeviceSparseAggregator::Check(const Status& status) {
  if (status.ok() || !result_.status.ok()) return;
  result_.status = Status(status.code(), StrCat("step ", step_, " on ",
                                                config_.device->description(),
                                                ": ", status.message()));
}

void DeviceSparseAggregator::CheckKernel(const char* kernel, int error) {
  Check(config_.device->KernelStatus(kernel, error));
}

kernels::ChunkRange DeviceSparseAggregator::Range(std::size_t first,
                                                  std::size_t end) const {
  return {parts_.layout->elements(), selector_.chunk(0).count, first,
          end - first};
}

void DeviceSparseAggregator::Begin(std::uint64_t step, float loss_scale) {
  step_ = step;
  result_ = AggregateResult();
  result_.gradient_scale = ScaleInPool(parts_, loss_scale);
  // The residual is in units of the scaled gradients.
  const float factor = loss_scale / std::exchange(loss_scale_, loss_scale);
  if (factor != 1.0F) {
    CheckKernel("chunk_rescale",
                kernels_.chunk_rescale({Range(0, selector_.chunks()),
                                        As<float>(residual_), factor},
                                       config_.stream->native()));
  }
  selection_ = selector_.selected();
  buckets_ = PlanSparse(
      {parts_.layout->elements(), selector_.chunk(0).count, selection_},
      bucket_bytes_, SizeOf(parts_.wire_dtype));
  exchanged_ = ExtentsOf(buckets_);
  packed_begin_.clear();
  std::size_t packed = 0;
  for (const Bucket& bucket : buckets_) {
    packed_begin_.push_back(packed);
    packed += bucket.elements;
  }
  // As if no chunk were short: the same from step to step.
  Check(EnsurePacked(selector_.selected_count() * selector_.chunk(0).count *
                     SizeOf(parts_.wire_dtype)));
  Check(config_.stream->Fill(nonfinite_.get(), 0, sizeof(std::uint32_t)));
  written_end_ = prepared_ = launched_ = arrived_ = 0;
  launched_at_.clear();
  phase_ = Phase::kBuckets;
  result_.buckets = buckets_.size();
  result_.chunks = selector_.chunks();
  result_.selected_chunks = selector_.selected_count();
}

void DeviceSparseAggregator::Advance(std::size_t written_end) {
  written_end_ = written_end;
}

// Chunks whose elements are all written.
std::size_t DeviceSparseAggregator::ChunksWritten() const {
  return written_end_ == parts_.layout->elements()
             ? selector_.chunks()
             : written_end_ / selector_.chunk(0).count;
}

bool DeviceSparseAggregator::HasWork() const {
  switch (phase_) {
    case Phase::kBuckets:
      return !result_.status.ok() || ChunksWritten() > prepared_ ||
             (prepared_ == selector_.chunks() && arrived_ == buckets_.size());
    case Phase::kSelecting:
    case Phase::kRestoring:
      return true;
    default:
      return false;
  }
}

bool DeviceSparseAggregator::Work() {
  if (!HasWork()) return false;
  if (!result_.status.ok()) {
    phase_ = Phase::kDone;
    return true;
  }
  if (phase_ == Phase::kSelecting || phase_ == Phase::kRestoring) {
    const Result<bool> reached = copied_->Query();
    Check(reached.status());
    if (reached.ok() && !reached.value()) return false;
    if (phase_ == Phase::kSelecting && reached.ok()) {
      TakeSelection();
    } else {
      phase_ = Phase::kDone;
    }
    return true;
  }
  const std::size_t written = ChunksWritten();
  if (written > prepared_) {
    Prepare(written);
    Launch();
  } else {
    StartNorms();
  }
  return true;
}

void DeviceSparseAggregator::Prepare(std::size_t chunk_end) {
  kernels::ChunkResidualArgs args = {};
  args.range = Range(prepared_, chunk_end);
  args.slots = As<std::uint32_t>(slots_[now_]);
  args.grads = parts_.pool;
  args.type = parts_.pool_dtype;
  args.residual = As<float>(residual_);
  args.packed = packed_.get();
  args.packed_type = parts_.wire_dtype;
  args.scale = 1.0F;
  args.zero_kept = config_.zero_kept;
  args.keep_factor = config_.keep_factor;
  args.norm_scale = 1.0F / loss_scale_;
  args.norms = As<float>(norms_);
  CheckKernel("chunk_residual",
              kernels_.chunk_residual(args, config_.stream->native()));
  prepared_ = chunk_end;
}

void DeviceSparseAggregator::Launch() {
  const std::size_t prepared_end = prepared_ == selector_.chunks()
                                       ? parts_.layout->elements()
                                       : selector_.chunk(prepared_).begin;
  while (result_.status.ok() && launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= prepared_end) {
    const std::size_t id = launched_++;
    launched_at_.push_back(parts_.clock->Now());
    CollectiveCall call =
        BucketCall(parts_, buckets_[id], loss_scale_, step_, id);
    call.output = packed_.get() + packed_begin_[id] * SizeOf(parts_.wire_dtype);
    call.dtype = parts_.wire_dtype;
    call.keep_scaled = parts_.pool_dtype != DType::kFloat32;
    call.extents.clear();
    parts_.collective->Start(call,
                             {&DeviceSparseAggregator::OnBucket, this, id});
  }
}

void DeviceSparseAggregator::OnBucket(void* self, std::uint64_t bucket,
                                      std::uint32_t flags,
                                      const Status& status) {
  auto& sparse = *static_cast<DeviceSparseAggregator*>(self);
  ++sparse.arrived_;
  sparse.parts_.recorder->Record(
      BucketSpan(sparse.parts_, sparse.buckets_[bucket], sparse.step_, bucket,
                 sparse.launched_at_[bucket]));
  if ((flags & kFlagNonfinite) != 0) sparse.result_.nonfinite = true;
  if (!status.ok()) {
    if (sparse.result_.status.ok()) sparse.result_.status = status;
    return;
  }
  sparse.Unpack(sparse.buckets_[bucket]);
}

// Sent chunks hold the group's gradients: a mean has been divided by the
// number of ranks already, a sum has not.
void DeviceSparseAggregator::Unpack(const Bucket& bucket) {
  const std::size_t chunk_elements = selector_.chunk(0).count;
  const Extent& last = bucket.extents.back();
  kernels::ChunkUnpackArgs args = {};
  args.range =
      Range(bucket.extents.front().begin / chunk_elements,
            (last.begin + last.count + chunk_elements - 1) / chunk_elements);
  args.slots = As<std::uint32_t>(slots_[now_]);
  args.grads = parts_.pool;
  args.type = parts_.pool_dtype;
  args.packed = packed_.get();
  args.packed_type = parts_.wire_dtype;
  // A call that did not convert has unscaled what it left.
  const bool scaled = parts_.pool_dtype == DType::kFloat32 &&
                      parts_.wire_dtype != DType::kFloat32;
  args.scale = scaled ? 1.0F / loss_scale_ : 1.0F;
  args.norm_scale =
      (parts_.reduce == ReduceOp::kMean
           ? 1.0F
           : 1.0F / static_cast<float>(parts_.collective->size())) /
      result_.gradient_scale;
  args.norms = As<float>(norms_);
  args.nonfinite = As<std::uint32_t>(nonfinite_);
  CheckKernel("chunk_unpack",
              kernels_.chunk_unpack(args, config_.stream->native()));
}

void DeviceSparseAggregator::StartNorms() {
  phase_ = Phase::kNorms;
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = norms_.get();
  call.count = selector_.chunks();
  call.op = ReduceOp::kSum;
  call.channel = Channel::kGradients;
  call.step = step_;
  call.bucket = buckets_.size();
  parts_.collective->Start(call, {&DeviceSparseAggregator::OnNorms, this, 0});
}

void DeviceSparseAggregator::OnNorms(void* self, std::uint64_t, std::uint32_t,
                                     const Status& status) {
  auto& sparse = *static_cast<DeviceSparseAggregator*>(self);
  if (!status.ok()) {
    sparse.result_.status = status;
    sparse.phase_ = Phase::kDone;
    return;
  }
  sparse.SelectOnDevice();
  if (!sparse.result_.status.ok()) sparse.phase_ = Phase::kDone;
}

}  // namespace gradientflow
