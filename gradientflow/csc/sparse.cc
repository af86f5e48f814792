#include "gradientflow/csc/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

namespace gradientflow {
namespace {

// Whether there is anything to add, or to rescale.
bool AnyNonzero(const float* values, std::size_t n) {
  return std::any_of(values, values + n, [](float v) { return v != 0.0F; });
}

}  // namespace

std::span<const std::uint8_t> SelectionIn(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

Status CheckSparseState(const ChunkSelector& selector,
                        std::size_t residual_bytes, std::uint64_t next_step,
                        std::span<const std::byte> residual,
                        std::span<const std::byte> next_selection) {
  if (residual.size() != residual_bytes) {
    return {StatusCode::kInvalidArgument,
            StrCat("the state's residual has ", residual.size(),
                   " bytes, expected ", residual_bytes)};
  }
  return selector.Check(next_step, SelectionIn(next_selection));
}

SparseAggregator::SparseAggregator(const AggregatorParts& parts,
                                   const SparseConfig& config,
                                   ChunkSelector selector)
    : parts_(parts),
      config_(config),
      selector_(std::move(selector)),
      bucket_bytes_(parts.bucket_bytes),
      residual_(NewPages<float>(parts.layout->elements())),
      dirty_(selector_.chunks(), 0),
      norms_(selector_.chunks(), 0.0F) {
  if (residual_ == nullptr) throw std::bad_alloc();
}

std::byte* SparseAggregator::At(std::size_t element) const {
  return parts_.pool + element * SizeOf(parts_.pool_dtype);
}

Result<std::span<const float>> SparseAggregator::residual() {
  return std::span<const float>(residual_.get(), parts_.layout->elements());
}

void SparseAggregator::Begin(std::uint64_t step, float loss_scale) {
  Rescale(loss_scale);
  step_ = step;
  selection_ = selector_.selected();
  buckets_ = PlanSparse(
      {parts_.layout->elements(), selector_.chunk(0).count, selection_},
      bucket_bytes_, SizeOf(parts_.wire_dtype));
  exchanged_ = ExtentsOf(buckets_);
  sent_.clear();
  kept_.clear();
  for (std::size_t c = 0; c < selection_.size(); ++c) {
    (selection_[c] != 0 ? sent_ : kept_).push_back(c);
  }
  written_end_ = next_sent_ = next_kept_ = launched_ = arrived_ = 0;
  launched_at_.clear();
  unmeasured_.clear();
  norms_.assign(norms_.size(), 0.0F);
  norms_started_ = done_ = false;
  result_ = AggregateResult();
  result_.gradient_scale = ScaleInPool(parts_, loss_scale);
  result_.buckets = buckets_.size();
  result_.chunks = selector_.chunks();
  result_.selected_chunks = selector_.selected_count();
}

// The residual is in units of the scaled gradients.
void SparseAggregator::Rescale(float loss_scale) {
  const float factor = loss_scale / std::exchange(loss_scale_, loss_scale);
  if (factor == 1.0F) return;
  for (std::size_t c = 0; c < dirty_.size(); ++c) {
    if (dirty_[c] == 0) continue;
    const Extent chunk = selector_.chunk(c);
    float* residual = residual_.get() + chunk.begin;
    for (std::size_t i = 0; i < chunk.count; ++i) residual[i] *= factor;
  }
}

void SparseAggregator::Advance(std::size_t written_end) {
  written_end_ = written_end;
}

// Whether there is a next chunk, and it is written.
bool SparseAggregator::Written(const std::vector<std::size_t>& chunks,
                               std::size_t next) const {
  if (next == chunks.size()) return false;
  const Extent chunk = selector_.chunk(chunks[next]);
  return chunk.begin + chunk.count <= written_end_;
}

bool SparseAggregator::AllArrived() const {
  return next_kept_ == kept_.size() && arrived_ == buckets_.size();
}

bool SparseAggregator::HasWork() const {
  return !done_ && (!result_.status.ok() || Written(sent_, next_sent_) ||
                    Written(kept_, next_kept_) || !unmeasured_.empty() ||
                    (AllArrived() && !norms_started_));
}

bool SparseAggregator::Work() {
  if (!HasWork()) return false;
  if (!result_.status.ok()) {
    done_ = true;
  } else if (Written(sent_, next_sent_)) {
    Prepare(sent_[next_sent_++]);
    Launch();
  } else if (!unmeasured_.empty()) {
    TakeNorms(buckets_[unmeasured_.back()]);
    unmeasured_.pop_back();
  } else if (Written(kept_, next_kept_)) {
    Prepare(kept_[next_kept_++]);
  } else {
    StartNorms();
  }
  return true;
}

void SparseAggregator::Prepare(std::size_t chunk_id) {
  const Extent chunk = selector_.chunk(chunk_id);
  const bool send = selection_[chunk_id] != 0;
  if (send && dirty_[chunk_id] == 0) return;  // Nothing to add.
  const Clock::Time begin = parts_.clock->Now();
  float norm = 0.0F;
  config_.kernels->residual(
      {At(chunk.begin), parts_.pool_dtype, residual_.get() + chunk.begin,
       chunk.count, send, config_.zero_kept, config_.keep_factor,
       send ? nullptr : &norm},
      nullptr);
  RecordKernel("residual", chunk_id, chunk.count, begin);
  // A pool of 16 bits leaves what its rounding took.
  const bool left = send ? parts_.pool_dtype != DType::kFloat32 : norm != 0.0F;
  dirty_[chunk_id] = left ? 1 : 0;
  if (send) return;
  norms_[chunk_id] = norm / loss_scale_;
  if (std::isfinite(norm)) return;
  // The step will be skipped on every rank; an inf must not stay for ever.
  float* residual = residual_.get() + chunk.begin;
  for (std::size_t i = 0; i < chunk.count; ++i) {
    if (!std::isfinite(residual[i])) residual[i] = 0.0F;
  }
}

void SparseAggregator::Launch() {
  const std::size_t prepared_end =
      next_sent_ == sent_.size() ? parts_.layout->elements()
                                 : selector_.chunk(sent_[next_sent_]).begin;
  while (launched_ < buckets_.size() &&
         buckets_[launched_].pool_end <= prepared_end) {
    const std::size_t id = launched_++;
    launched_at_.push_back(parts_.clock->Now());
    parts_.collective->Start(
        BucketCall(parts_, buckets_[id], loss_scale_, step_, id),
        {&SparseAggregator::OnBucket, this, id});
  }
}

void SparseAggregator::OnBucket(void* self, std::uint64_t bucket,
                                std::uint32_t flags, const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  ++sparse.arrived_;
  sparse.parts_.recorder->Record(
      BucketSpan(sparse.parts_, sparse.buckets_[bucket], sparse.step_, bucket,
                 sparse.launched_at_[bucket]));
  sparse.unmeasured_.push_back(bucket);
  if ((flags & kFlagNonfinite) != 0) sparse.result_.nonfinite = true;
  if (!status.ok()) sparse.result_.status = status;
}

// Sent chunks hold the group's gradients: a mean has been divided by the
// number of ranks already, a sum has not.
void SparseAggregator::TakeNorms(const Bucket& bucket) {
  const Clock::Time begin = parts_.clock->Now();
  const float scale =
      (parts_.reduce == ReduceOp::kMean
           ? 1.0F
           : 1.0F / static_cast<float>(parts_.collective->size())) /
      result_.gradient_scale;
  const std::size_t chunk_elements = selector_.chunk(0).count;
  for (const Extent& extent : bucket.extents) {
    const std::size_t end = extent.begin + extent.count;
    for (std::size_t c = extent.begin / chunk_elements;
         c < selector_.chunks() && selector_.chunk(c).begin < end; ++c) {
      const Extent chunk = selector_.chunk(c);
      config_.kernels->l1_norm(
          {At(chunk.begin), parts_.pool_dtype, chunk.count, scale, &norms_[c]},
          nullptr);
    }
  }
  RecordKernel("norms", 0, bucket.elements, begin);
}

void SparseAggregator::RecordKernel(const char* name, std::uint64_t id,
                                    std::size_t elements, Clock::Time begin) {
  parts_.recorder->Record({"kernel", name, step_, id,
                           elements * SizeOf(parts_.pool_dtype), begin,
                           parts_.clock->Now()});
}

void SparseAggregator::StartNorms() {
  norms_started_ = true;
  CollectiveCall call;
  call.kind = CollectiveKind::kAllreduce;
  call.output = norms_.data();
  call.count = norms_.size();
  call.op = ReduceOp::kSum;
  call.channel = Channel::kGradients;
  call.step = step_;
  call.bucket = buckets_.size();
  parts_.collective->Start(call, {&SparseAggregator::OnNorms, this, 0});
}

void SparseAggregator::OnNorms(void* self, std::uint64_t, std::uint32_t,
                               const Status& status) {
  auto& sparse = *static_cast<SparseAggregator*>(self);
  sparse.result_.status = status;
  if (status.ok()) sparse.Select();
  sparse.done_ = true;
}

void SparseAggregator::Select() {
  // What was kept back is in no bucket: its norms tell, on every rank alike.
  for (std::size_t c = 0; c < norms_.size(); ++c) {
    if (!std::isfinite(norms_[c])) result_.nonfinite = true;
  }
  if (result_.nonfinite) KeepFinite();
  result_.status = selector_.Select(step_ + 1, norms_);
}

// The step will be skipped: what was sent, and is finite, goes back to the
// residuals, each rank an equal part, so that it is sent again. They may hold
// what the pool's rounding took.
void SparseAggregator::KeepFinite() {
  const float scaled = loss_scale_ / result_.gradient_scale;
  const float back =
      parts_.reduce == ReduceOp::kMean
          ? scaled
          : scaled / static_cast<float>(parts_.collective->size());
  std::vector<float> sent;  // Of one chunk.
  for (std::size_t c = 0; c < selection_.size(); ++c) {
    if (selection_[c] == 0) continue;
    const Extent chunk = selector_.chunk(c);
    float* residual = residual_.get() + chunk.begin;
    sent.resize(chunk.count);
    config_.kernels->convert(
        {At(chunk.begin), parts_.pool_dtype, sent.data(), DType::kFloat32,
         nullptr, chunk.count, back, nullptr},
        nullptr);
    for (std::size_t i = 0; i < chunk.count; ++i) {
      if (std::isfinite(sent[i])) residual[i] += sent[i];
      if (!std::isfinite(residual[i])) residual[i] = 0.0F;
    }
    dirty_[c] = AnyNonzero(residual, chunk.count) ? 1 : 0;
  }
}

Status SparseAggregator::Restore(std::uint64_t next_step, float loss_scale,
                                 std::span<const std::byte> residual,
                                 std::span<const std::byte> next_selection) {
  GF_RETURN_IF_ERROR(selector_.Restore(next_step, SelectionIn(next_selection)));
  std::memcpy(residual_.get(), residual.data(), residual.size());
  loss_scale_ = loss_scale;
  for (std::size_t c = 0; c < dirty_.size(); ++c) {
    const Extent chunk = selector_.chunk(c);
    dirty_[c] = AnyNonzero(residual_.get() + chunk.begin, chunk.count) ? 1 : 0;
  }
  return Status();
}

}  // namespace gradientflow
